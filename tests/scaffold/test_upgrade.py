"""Any release reaches any clone: with history or without, with services of its own, with folders deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from shared.dev.additions import forget
from shared.dev.patterns import Foreign
from shared.dev.record import remember
from shared.dev.replay import redo
from shared.dev.scaffold import new_of_kind, new_service
from shared.dev.stages import StageFailed
from shared.dev.upgrade import upgrade
from shared.runtime.checkout import found_services
from tests.scaffold.checkout import Checkout
from tests.scaffold.releases import NEW, OLD, check_upgraded, clone, commit, tracked


def own_words(cloned: Checkout) -> None:
    edit(cloned, "README.md", "# Onefold", "# Ours")
    edit(cloned, "services/accounts/api.py", '"""The HTTP API of', '"""Our own API of')


def own_service(cloned: Checkout) -> None:
    copy(cloned, "vouchers", "accounts")
    edit(cloned, "services/vouchers/api.py", '"""The HTTP API of', '"""Our own API of')
    edit(cloned, "docker-compose.yml", "name: onefold", "name: ours")


def copy_of_a_copy(cloned: Checkout) -> None:
    own_service(cloned)
    copy(cloned, "coupons", "vouchers")


def own_services_of_patterns(cloned: Checkout) -> None:
    new_of_kind(cloned.root, "parcels", "aggregate")
    remember(cloned.root, "new-service", name="parcels", kind="aggregate")
    told = Foreign("parcel.created", "parcels.events.v1")
    new_of_kind(cloned.root, "reminders", "process", told)
    remember(cloned.root, "new-service", name="reminders", kind="process", on=told.event, topic=told.topic)
    edit(cloned, "services/parcels/api.py", '"""The HTTP API of', '"""Our own API of')


def lost_history(cloned: Checkout) -> None:
    own_service(cloned)
    shutil.rmtree(cloned.root / ".git")
    cloned.run("git", "init", "-q", "-b", "main", ".")


def deleted_folders(cloned: Checkout) -> None:
    copy(cloned, "vouchers", "accounts")
    for folder in ("services/accounts", "tests/unit/accounts", "bench"):
        shutil.rmtree(cloned.root / folder)


def edit(cloned: Checkout, file: str, old: str, new: str) -> None:
    path = cloned.root / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def copy(cloned: Checkout, name: str, like: str) -> None:
    """As the command does."""
    new_service(cloned.root, name, like)
    remember(cloned.root, "new-service", name=name, like=like)


CLONES = (own_words, own_service, copy_of_a_copy, own_services_of_patterns, lost_history, deleted_folders)
ALWAYS = {(copy_of_a_copy, OLD[0]), (deleted_folders, OLD[0])}
CASES = [
    pytest.param(*case, id=f"{case[0].__name__}-{case[1]}", marks=() if case in ALWAYS else pytest.mark.long)
    for case in product(CLONES, OLD)
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "tag"), CASES)
def test_a_clone_gets_the_release_and_keeps_what_is_its_own(
    change: Callable[[Checkout], None], tag: str, releases: Checkout, tmp_path: Path
) -> None:
    cloned = clone(releases, tag, tmp_path / "clone")
    change(cloned)
    commit(cloned)
    before = tracked(cloned)
    done = upgrade(cloned.root, NEW, str(releases.root))
    assert done.conflicts == ()
    assert tracked(cloned) == before
    cloned.run("git", "switch", "-q", done.branch)
    check_upgraded(cloned, before, releases, tag, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({"vouchers", *found_services()} - {"accounts"})[-2:])
def test_a_name_that_is_in_use_is_refused_by_no_release(name: str, checkout: Checkout) -> None:
    """The release has a service or a folder of that name, and rules that this ruff does not know."""
    step = {"verb": "new-service", "name": name, "like": "accounts", "singular": "paper"}
    forget(checkout.root, name)
    new_service(checkout.root, name, "accounts", "paper")
    made = checkout.files()
    (checkout.root / name).mkdir()
    edit(checkout, "pyproject.toml", "select = [", 'select = [ "QQQ",')
    redo(checkout.root, step)
    assert checkout.files() == made | {"pyproject.toml": (checkout.root / "pyproject.toml").read_bytes()}


@pytest.mark.slow
def test_a_copy_that_a_release_cannot_make_gets_no_fixes_and_others_do(releases: Checkout, tmp_path: Path) -> None:
    cloned = clone(releases, OLD[0], tmp_path / "clone")
    remember(cloned.root, "new-service", name="glass", like="accounts")
    remember(cloned.root, "new-service", name="panes", like="glass")
    copy(cloned, "vouchers", "accounts")
    commit(cloned)
    done = upgrade(cloned.root, NEW, str(releases.root))
    refused, missing = done.notes
    assert refused.startswith(f"services/glass gets no fixes: {OLD[0]} cannot do again")
    assert refused.endswith("what is the singular of glass?")
    assert missing == "services/panes gets no fixes: glass is not in both releases"
    assert f"# fixed in {NEW}" in cloned.run("git", "show", f"{done.branch}:services/vouchers/api.py")


@pytest.mark.slow
def test_what_a_release_does_not_know_how_to_do_stops_the_upgrade(releases: Checkout, tmp_path: Path) -> None:
    cloned = clone(releases, OLD[0], tmp_path / "clone")
    remember(cloned.root, "new-verb")
    commit(cloned)
    with pytest.raises(StageFailed, match=rf"{OLD[0]} cannot do again .*, new-verb: "):
        upgrade(cloned.root, NEW, str(releases.root))
    assert cloned.run("git", "branch", "--list", "upgrade/*") == ""


def test_an_upgrade_that_has_written_no_branch_exits_with_two(untouched: Checkout) -> None:
    said = untouched.verb("upgrade", expect=2)
    assert "git cannot say what is committed here" in said
    assert "fix: " in said


@pytest.mark.slow
@pytest.mark.long  # each file is compared above
@pytest.mark.timeout(1200)
def test_an_upgraded_clone_passes_every_check_and_the_tests_of_its_copy(releases: Checkout, tmp_path: Path) -> None:
    cloned = clone(releases, OLD[0], tmp_path / "clone")
    assert "changed  onefold.toml" in cloned.verb("new-service", "vouchers", "--like", "accounts")
    commit(cloned)
    said = cloned.verb("upgrade", "--from", str(releases.root))
    assert all(f"- To do: what {tag} asks for." in said for tag in (*OLD[1:], NEW))
    cloned.run("git", "switch", "-q", f"upgrade/{NEW}")
    assert cloned.verb("whose") == ""
    assert f"this clone is at {NEW}" in cloned.verb("upgrade", expect=2)
    cloned.lint(".")
    cloned.pytest("-m", "not broker and not slow", "-k", "not door", "tests/unit/vouchers", "tests/architecture")
