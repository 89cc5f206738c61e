"""What is left without the shop is a skeleton: one service, the engine, and tests that pass."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from shared.dev.processes import identify
from shared.dev.record import remember
from shared.dev.remove_demo import plan
from shared.dev.scaffold import new_service
from shared.dev.up import Record
from shared.dev.upgrade import upgrade
from shared.runtime.checkout import found_services
from tests.scaffold.checkout import Checkout
from tests.scaffold.conftest import copied
from tests.scaffold.releases import NEW, OLD, check_upgraded, clone, commit, tracked

HISTORY = ("docs/adr/", "onefold.toml")  # decision records stay as they were written, and what was done is noted
ANY_VERB = ("tests/dev/test_bootstrap.py", "tests/unit/dev/test_front_door.py")  # `demo` is an example there
FAST = ("-m", "not (broker or slow or spark or long or compose)", "-k", "not door")


@pytest.fixture
def committed(checkout: Checkout) -> Checkout:
    return _committed(checkout)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return _committed(copied(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def whole(one: Checkout) -> Iterator[Checkout]:
    """One for all tests in which nothing is removed."""
    yield one
    one.run("git", "checkout", "-q", ".")
    one.run("git", "clean", "-fdxq")


def _committed(checkout: Checkout) -> Checkout:
    checkout.run("git", "init", "-q", ".")
    commit(checkout)
    return checkout


@pytest.mark.long  # in short, no text of it names what was removed
def test_the_skeleton_can_be_imported_with_all_its_tests(committed: Checkout) -> None:
    said = committed.verb("remove-demo", "--yes")
    assert "it is not as it was" not in said
    assert found_services(committed.root) == ["accounts"]
    committed.pytest("--collect-only", "-q", "tests")


@pytest.mark.slow
def test_all_examples_can_be_removed(committed: Checkout) -> None:
    """As in a new project, whose tests pass: what is left is the same, but for names and the README."""
    committed.verb("new-project", str(committed.root.parent / "new"), "onefold")
    committed.verb("remove-demo", "--all", "--yes")
    assert found_services(committed.root) == []
    assert "include: []\n" in (committed.root / "services" / "compose.yml").read_text()
    once, redone = committed.files(), Checkout(committed.root.parent / "new").files()
    paths = [{path for path in files if not path.startswith(".git/")} for files in (once, redone)]
    assert paths[0] == paths[1]
    assert {path for path in paths[0] if once[path] != redone[path]} == {"README.md", "onefold.toml"}
    assert 'verb = "remove-demo"\nall = "accounts"\n' in once["onefold.toml"].decode()
    committed.pytest("-k", "link or listed or host or compose", "tests/architecture")


@pytest.mark.slow
@pytest.mark.long  # the fast tests of a whole checkout
@pytest.mark.timeout(5400)
def test_the_skeleton_passes_every_check_and_its_tests(committed: Checkout) -> None:
    committed.verb("remove-demo", "--yes")
    committed.lint(".")
    committed.pytest(*FAST, "tests")


def test_no_text_mentions_what_was_removed(committed: Checkout) -> None:
    before = {page: _dead_links(page) for page in _pages(committed)}  # to what a team has deleted
    committed.verb("remove-demo", "--yes")
    gone = re.compile(
        r"\bdemo\b|(?:services[./]|(?:--like|start|stop|reprocess|group) )(?:inventory|orders|pickups|sales)\b"
        r"|`(?:inventory|pickups|sales)`|orders: a process|ORDERS_DEADLINE_S|tests[./]shop\b|remove.demo",
        re.IGNORECASE,
    )
    texts = {
        path: body.decode()
        for path, body in committed.files().items()
        if not path.startswith((".git/", *HISTORY)) and not path.endswith((".json", ".png"))
    }
    mentions = {path: gone.findall(text) for path, text in texts.items() if gone.search(text)}
    assert {path: found for path, found in mentions.items() if path not in ANY_VERB} == {}
    assert {page.name: dead for page in _pages(committed) if (dead := _dead_links(page) - before[page])} == {}


def _pages(checkout: Checkout) -> list[Path]:
    return [page for page in checkout.root.rglob("*.md") if "adr" not in page.parts]


def _dead_links(page: Path) -> set[str]:
    return {link for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()) if not (page.parent / link).exists()}


def test_own_services_stay_and_those_that_lose_a_neighbour_are_named(committed: Checkout) -> None:
    new_service(committed.root, "trends", "sales")
    new_service(committed.root, "wallets", "accounts")
    new_service(committed.root, "ledgers", "accounts")
    with (committed.root / "services" / "ledgers" / "service.py").open("a") as service:
        service.write('SERVICE = Service(TOPOLOGY, decider=DECIDER, reads=[Topic("orders.events.v1")])\n')
    commit(committed)
    said = committed.verb("remove-demo", "--yes")
    assert re.findall(r"^note +services/(\w+) names topics that are removed", said, re.MULTILINE) == [
        "ledgers",
        "trends",
    ]
    assert found_services(committed.root) == ["accounts", "ledgers", "trends", "wallets"]


@pytest.mark.slow
@pytest.mark.long  # in short, what a new project lacks does not come back either
@pytest.mark.parametrize("tag", OLD)
def test_an_upgrade_brings_nothing_back(tag: str, releases: Checkout, tmp_path: Path) -> None:
    """A copy of what was removed gets its fixes."""
    cloned = clone(releases, tag, tmp_path / "clone")
    new_service(cloned.root, "bookings", "orders")
    remember(cloned.root, "new-service", name="bookings", like="orders")
    commit(cloned)
    cloned.verb("remove-demo", "--yes")
    commit(cloned)
    before = tracked(cloned)
    done = upgrade(cloned.root, NEW, str(releases.root))
    assert done.conflicts == ()
    cloned.run("git", "switch", "-q", done.branch)
    assert found_services(cloned.root) == ["accounts", "bookings"]
    assert f"# fixed in {NEW}" in (cloned.root / "services" / "bookings" / "api.py").read_text()
    check_upgraded(cloned, before, releases, tag, tmp_path)


def test_the_tests_of_shared_code_stay(whole: Checkout) -> None:
    """They use accounts, or declare what they need."""
    tests = whole.root / "tests"
    kept = {*tests.glob("unit/*.py"), *(tests / "pipelines" / f"test_{name}.py" for name in ("folds", "views"))}
    assert kept & {*plan(whole.root).gone} == set()


def test_remove_demo_asks_first(whole: Checkout) -> None:
    before = whole.files()
    said = whole.verb("remove-demo", expect=1, stdin="n\n")
    assert "remove  services/orders\n" in said
    assert whole.files() == before


@pytest.mark.parametrize("change", ["README.md", "services/accounts/notes.txt"])
def test_uncommitted_changes_stop_remove_demo(change: str, whole: Checkout) -> None:
    with (whole.root / change).open("a") as file:
        file.write("of our own\n")
    before = whole.files()
    assert "not committed" in whole.verb("remove-demo", "--yes", expect=1)
    assert whole.files() == before


def test_what_git_does_not_show_stops_remove_demo(whole: Checkout) -> None:
    whole.run("git", "config", "status.showUntrackedFiles", "no")
    (whole.root / "services" / "orders" / "notes.txt").touch()
    assert "not committed: services/orders/notes.txt" in whole.verb("remove-demo", "--yes", expect=1)
    (whole.root / ".git" / "info" / "exclude").write_text("notes.txt\n__pycache__\n")
    assert "git ignores what would be removed: services/orders/notes.txt\n" in whole.verb("remove-demo", expect=1)
    (whole.root / "services" / "orders" / "notes.txt").unlink()
    assert "go on?" in whole.verb("remove-demo", expect=1, stdin="n\n")  # its __pycache__ may go


def test_a_running_up_stops_remove_demo(whole: Checkout) -> None:
    """Its workers would run without their code, and `status` would not show them."""
    record = whole.root / ".onefold" / "up" / "running.json"
    record.parent.mkdir(parents=True)
    found = Record(identify(os.getpid()), (), {"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"}, {})
    record.write_text(json.dumps(asdict(found)))
    assert "end it first: python3 dev.py down" in whole.verb("remove-demo", "--yes", expect=1)
    assert (whole.root / "demo").exists()


def test_without_git_nothing_is_removed(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(Path(checkout.root).parent))
    assert "git cannot say" in checkout.verb("remove-demo", "--yes", expect=1)
    assert (checkout.root / "demo").exists()
