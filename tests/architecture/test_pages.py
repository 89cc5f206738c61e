"""The pages speak of what exists: files, headings, and tests by their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.dev.record import recorded

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("services/*/README.md"))]
LINK = re.compile(r"\]\(([^)]+)\)")
NAMED = re.compile(r"\[`(\w+)`\]\(([^)\s]+\.py)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not _exists(page, *link.partition("#")[::2])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_that_links_to_a_module_is_in_it(page: Path) -> None:
    named = [(name, page.parent / module) for name, module in NAMED.findall(page.read_text())]
    assert [name for name, module in named if name != module.stem and not _defines(module, name)] == []


def test_every_line_about_security_names_the_tests_that_show_it() -> None:
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    rows = [line for line in lines if "| " in line and not line.startswith("| who |")]
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row.split("|")[-2])] == []


def test_every_release_says_what_it_asks_and_which_formats_it_changes() -> None:
    _, *sections = re.split(r"^## ", (ROOT / "docs" / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert recorded(ROOT).release in [section.split()[0] for section in sections]
    assert [section for section in sections if not re.search(r"^- Formats: .*?^- To do: ", section, re.M | re.S)] == []


def test_every_scenario_that_is_named_exists() -> None:
    scenarios = re.findall(r"`(?:test_)?([a-z]+(?:_[a-z]+){2,})`", (ROOT / "docs" / "reliability.md").read_text())
    tests = "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    assert [name for name in scenarios if f"def test_{name}(" not in tests] == []


def _exists(page: Path, path: str, anchor: str) -> bool:
    target = (page.parent / path if path else page).resolve()
    if not target.exists():
        return any(target.is_relative_to(ROOT / each) for each in recorded(ROOT).own)  # a team may delete it
    return not anchor or anchor in _anchors(target.read_text())


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _defines(module: Path, name: str) -> bool:
    defined = rf"^(?:(?:async )?(?:def|class) (?:test_)?{name}\b|(?: {{4}})?{name}(?:: .+)? = )"
    return re.search(defined, module.read_text(), re.MULTILINE) is not None
