"""One word for each thing: docs/glossary.md explains what services import, and no code or page says it otherwise.

That the names in its third column exist is checked with all pages, in test_pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import shared.domain
import shared.effects
import shared.service
import shared.sinks
import shared.topology

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
FACADES = (shared.domain, shared.topology, shared.service, shared.sinks, shared.effects)
CODE = [path for room in ("shared", "pipelines", "bench") for path in ROOT.glob(f"{room}/**/*.py")]
PAGES = [path for path in ROOT.glob("docs/**/*.md") if path != GLOSSARY and "adr" not in path.parts]
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\sA-Za-z_]")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below it."""
    _, _, text = GLOSSARY.read_text().partition(f"# {heading}\n")
    table = re.search(r"^\|.*?^$", text + "\n", re.MULTILINE | re.DOTALL)
    assert table is not None
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table[0].splitlines()[2:]]


TERMS = rows("Glossary")
STAY = [name.strip("`") for name, _, _ in rows("Names that stay")]
REPLACED = [(term, word) for term, *_, words, _ in TERMS for word in filter(None, words.split(", "))]


def words_in(text: str) -> str:
    """Its words, also those that names consist of, in lower case, between blanks; where a phrase ends, a bar."""
    for name in STAY:
        text = re.sub(rf"(?<![a-z]){re.escape(name)}(?![a-z])", "|", text)
    return f" {' '.join(WORD.findall(text)).lower()} "


@cache
def words_by_file() -> Mapping[str, str]:
    """The words of each file; services have words of their own."""
    return {str(path.relative_to(ROOT)): words_in(path.read_text()) for path in [*CODE, *PAGES]}


def test_the_terms_are_in_order_and_each_is_there_once() -> None:
    terms = [term.lower() for term, *_ in TERMS]
    assert terms == sorted(set(terms), key=lambda term: term.replace("-", ""))


def test_all_that_services_import_has_a_term() -> None:
    explained = {name for row in TERMS for name in re.findall(r"\[`(\w+)`\]", row[2])}
    assert sorted({name for facade in FACADES for name in facade.__all__} - explained) == []


@pytest.mark.parametrize(("term", "word"), REPLACED, ids=lambda text: text)
def test_a_word_that_a_term_replaces_is_said_nowhere(term: str, word: str) -> None:
    replaced = re.compile(rf" {word.lower()}(?:s|es)? ")
    assert [path for path, words in words_by_file().items() if replaced.search(words)] == [], f"fix: say {term}"
