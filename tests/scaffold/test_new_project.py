"""A new project has the engine with its tests, no example, and a first commit of its own, to which upgrades come."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from shared.dev.git import git
from shared.dev.new_project import new_project
from shared.dev.stages import StageFailed
from shared.dev.upgrade import upgrade
from shared.runtime.checkout import found_services
from tests.scaffold.checkout import Checkout
from tests.scaffold.conftest import OURS
from tests.scaffold.releases import NEW, OLD, check_upgraded, clone, commit, tracked

FAST = ("-m", "not (broker or slow or spark or long or compose)", "-k", "not door")


@pytest.fixture
def template(releases: Checkout, tmp_path: Path) -> Checkout:
    """The first release, checked out."""
    return clone(releases, OLD[0], tmp_path / "template")


def test_a_new_project_is_empty_and_gets_services(
    template: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Checkout(tmp_path / "our own")
    (tmp_path / "ignored").write_text("vendor/\n*.lock\n")
    (tmp_path / "user").write_text(f"[core]\n\texcludesFile = {tmp_path / 'ignored'}\n")
    with monkeypatch.context() as user:
        user.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "user"))
        said = template.verb("new-project", str(ours.root), "ticket-office")
        assert ours.run("git", "status", "--short", "--ignored") == ""  # its first commit is all of it
    assert f"from {OLD[0]}; its first commit is yours\nnext     cd '{ours.root}'\n" in said
    assert found_services(ours.root) == []
    assert ours.run("git", "log", "--format=%s").splitlines() == ["Begin ticket-office"]
    assert ours.run("git", "status", "--short") == ""
    assert "fix: python3 dev.py whose --from" in ours.run("python", "-m", "shared.dev.whose")
    (step,) = tomllib.loads((ours.root / "onefold.toml").read_text())["done"]
    assert step == {"verb": "new-project", "name": "ticket-office"}
    texts = {path: body.decode() for path, body in tracked(ours).items() if path.endswith((".py", ".yml", ".toml"))}
    gone = re.compile(r"services[./](?:accounts|inventory|orders|pickups|sales)\b|new.project")
    kept = ("onefold.toml", *(path for path in texts if path.startswith(("tests/", "docs/adr/"))))
    assert [path for path, text in texts.items() if path not in kept and gone.search(text)] == []
    imports = re.compile(r"^(?:from|import) services\.", re.MULTILINE)  # also those of a module that a test writes
    assert [path for path, text in texts.items() if path.startswith("tests/") and imports.search(text)] == []
    used = {each for text in texts.values() for each in re.findall(r"^from (tests\.[\w.]+) import", text, re.MULTILINE)}
    assert [each for each in used if not [*ours.root.glob(each.replace(".", "/") + "*")]] == []

    names = re.findall(r"^name: (\S+)$", "".join(map(Path.read_text, ours.root.glob("*compose*.yml"))), re.MULTILINE)
    assert sorted(name.partition("ticket-office")[2] for name in names) == ["", "-cluster", "-secure"]

    listed = ours.root / "services" / "compose.yml"
    own = [each.partition("/")[0] for each in yaml.safe_load(listed.read_text())["include"]]  # of a team that made it
    assert OURS & {*own} == set()
    for name, *kind in (
        ("parcels", "--kind", "aggregate"),
        ("counts", "--kind", "projection", "--on", "parcel.created"),
    ):
        assert f"changed  services/compose.yml: {name}" in ours.verb("new-service", name, *kind)
    ours.run("git", "diff", "--check")
    now = [each.partition("/")[0] for each in yaml.safe_load(listed.read_text())["include"]]
    assert sorted(now) == sorted([*own, "parcels", "counts"])


@pytest.mark.long  # in short, a clone gets them, in test_upgrade
@pytest.mark.timeout(1200)
def test_a_new_project_gets_upgrades(template: Checkout, releases: Checkout, tmp_path: Path) -> None:
    new_project(template.root, tmp_path / "ours", "ticket-office")
    ours = Checkout(tmp_path / "ours")
    ours.verb("new-service", "parcels", "--kind", "aggregate")
    commit(ours)
    before = tracked(ours)
    done = upgrade(ours.root, NEW, str(releases.root))
    assert done.conflicts == ()
    ours.run("git", "switch", "-q", done.branch)
    assert f"# fixed in {NEW}" in (ours.root / "services" / "parcels" / "api.py").read_text()
    check_upgraded(ours, before, releases, OLD[0], tmp_path)
    ours.verb("rename", "ticket-office", "--dry-run")  # that name is free


@pytest.mark.slow
@pytest.mark.long  # the fast tests of a whole checkout
@pytest.mark.timeout(5400)
def test_an_empty_project_passes_every_check(template: Checkout, tmp_path: Path) -> None:
    new_project(template.root, tmp_path / "ours", "ticket-office")
    ours = Checkout(tmp_path / "ours")
    ours.lint(".")
    ours.pytest(*FAST, "tests")
    for name, *kind in (
        ("parcels", "--kind", "aggregate"),
        ("reminders", "--kind", "process", "--on", "parcel.created"),
    ):
        ours.verb("new-service", name, *kind)
    ours.lint(".")
    ours.pytest(*FAST, "tests/architecture", "tests/unit")


@pytest.mark.parametrize(
    ("folder", "name", "why"),
    [
        ("new", "Tickets", "not a name"),
        ("old", "tickets", "exists"),
        ("part/new", "tickets", "would no longer be clean"),
        ("new", "tickets", "a folder of a larger repository"),
    ],
)
def test_a_refused_project_leaves_nothing(folder: str, name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "part").mkdir()
    git(tmp_path, "init", "-q")
    with pytest.raises(StageFailed, match=why):
        new_project(tmp_path / "part", tmp_path / folder, name)
    assert {*tmp_path.iterdir(), *tmp_path.glob("*/new")} == {tmp_path / each for each in (".git", "old", "part")}
