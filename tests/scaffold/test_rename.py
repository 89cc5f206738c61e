"""A renamed project has its new name in all that others meet, its data under the old one, and gets upgrades."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from shared.dev.record import remember
from shared.dev.rename import rename
from shared.dev.stages import StageFailed
from tests.scaffold.checkout import ROOT, Checkout
from tests.scaffold.releases import NEW, OLD, clone, commit, tracked

FAST = ("-m", "not (broker or slow or spark or long or compose)", "-k", "not door")
ADR = ROOT / "docs" / "adr" / "0036-what-names-data-stays.md"
TEMPLATES_OWN = ("LICENSE", "docs/adr/")


@pytest.fixture
def cloned(releases: Checkout, tmp_path: Path) -> Checkout:
    return clone(releases, OLD[0], tmp_path / "clone")


def left(checkout: Checkout) -> list[str]:
    """Lines that have the old name, where the decision does not say that it stays."""
    stays = re.findall(r"`([^`]*onefold[^`]*)`", ADR.read_text().partition("**Decision.**")[2], re.IGNORECASE)
    known = re.compile("|".join(map(re.escape, sorted(stays, key=len, reverse=True))))
    texts = {path: body.decode(errors="replace") for path, body in tracked(checkout).items()}
    found = [
        f"{path}: {line}"
        for path, text in texts.items()
        for line in text.splitlines()
        if "onefold" in line.lower() and "onefold" in known.sub("", line).lower()
    ]
    return [line for line in found if not line.startswith(TEMPLATES_OWN)]


def on_the_machine(checkout: Checkout) -> set[str]:
    """The names of Compose's projects, to which containers, volumes and the images that they build belong."""
    names = re.compile(r"^name: (\S+)$", re.MULTILINE)
    return {name for file in checkout.root.glob("*compose*.yml") for name in names.findall(file.read_text())}


def test_a_renamed_project_shares_nothing_in_compose_with_one_that_is_not(cloned: Checkout) -> None:
    before = on_the_machine(cloned)
    assert before == {"onefold", "onefold-secure", "onefold-cluster"}
    rename(cloned.root, "ticket-office", dry_run=False)
    assert on_the_machine(cloned) == {name.replace("onefold", "ticket-office") for name in before}


def test_only_what_names_data_keeps_the_old_name(releases: Checkout, cloned: Checkout) -> None:
    compose = cloned.root / "docker-compose.yml"
    compose.write_text(compose.read_text().replace("name: onefold", "name: ours"))
    commit(cloned)
    before = tracked(cloned)
    assert rename(cloned.root, "ticket-office", dry_run=True)["Onefold-Position"] == "Ticket-Office-Position"
    assert tracked(cloned) == before
    edited = cloned.verb("whose", "--from", str(releases.root))
    rename(cloned.root, "ticket-office", dry_run=False)
    assert cloned.verb("whose") == edited == "docker-compose.yml\n"  # none of what is not committed yet
    commit(cloned)
    assert left(cloned) == []
    assert tomllib.loads((cloned.root / "pyproject.toml").read_text())["project"]["name"] == "ticket-office"
    assert yaml.safe_load(compose.read_text())["name"] == "ticket-office"
    assert 'PREFIX = "TICKET_OFFICE_"\n' in (cloned.root / "shared" / "runtime" / "settings.py").read_text()
    assert before.keys() - tracked(cloned).keys() == {"tests/scaffold/test_rename.py"}


@pytest.mark.slow
@pytest.mark.long  # in short, upgrades of a project that was begun under another name
def test_an_upgrade_of_a_renamed_project_has_no_conflict(releases: Checkout, cloned: Checkout) -> None:
    cloned.verb("new-service", "vouchers", "--like", "accounts")
    commit(cloned)
    assert "a renamed system finds its data" in cloned.verb("rename", "ticket-office")
    cloned.verb("new-service", "parcels", "--kind", "aggregate")
    commit(cloned)
    cloned.verb("whose", "--from", str(releases.root))
    assert cloned.verb("whose") == ""
    said = cloned.verb("upgrade")
    assert not re.search(r"^(?:conflict|note) ", said, re.MULTILINE)
    cloned.run("git", "switch", "-q", f"upgrade/{NEW}")
    for service in ("accounts", "vouchers", "parcels"):
        assert f"# fixed in {NEW}" in (cloned.root / "services" / service / "api.py").read_text()
    assert cloned.verb("whose") == ""
    assert left(cloned) == []


@pytest.mark.slow
@pytest.mark.long  # the fast tests of a whole checkout
@pytest.mark.timeout(5400)
def test_a_renamed_project_passes_every_check(cloned: Checkout) -> None:
    cloned.verb("rename", "ticket-office")
    cloned.lint(".")
    assert "as accepted" in cloned.verb("schemas")
    cloned.pytest(*FAST, "tests/architecture", "tests/unit")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Tickets", "'Tickets' is not a name for a project"),
        ("ticket_office", "is not a name for a project"),
        ("ticket--office", "is not a name for a project"),
        ("2-tickets", "is not a name for a project"),
        ("accounts", "accounts is taken: there is services/accounts"),
        ("kafka", "kafka is taken: there is KAFKA_"),
        ("spark", "spark is taken: there is SPARK_"),
    ],
)
def test_a_name_that_something_else_has_is_refused(name: str, why: str, releases: Checkout) -> None:
    with pytest.raises(StageFailed, match=why):
        rename(releases.root, name, dry_run=False)


def test_a_project_is_renamed_once_and_when_git_could_bring_it_back(cloned: Checkout) -> None:
    (cloned.root / "notes.txt").write_text("ours\n")
    with pytest.raises(StageFailed, match=r"not committed: notes\.txt"):
        rename(cloned.root, "tickets", dry_run=False)
    remember(cloned.root, "rename", name="tickets")
    with pytest.raises(StageFailed, match="this project is called tickets already"):
        rename(cloned.root, "office", dry_run=False)
