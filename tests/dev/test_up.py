"""`up` as another process sees it: prints one line of JSON, runs once per root, restarts workers, ends with `down`."""

import io
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import httpx
import pytest
from typer.testing import CliRunner

from shared.dev import cli
from shared.dev import up as local_stack
from shared.dev.console import WorkersOfUp
from shared.dev.keeper import Keeper, Wanted, keep_running
from shared.dev.processes import Process, identify
from shared.dev.stack import Stack
from shared.dev.stages import StageFailed
from shared.dev.worker import Command, Worker, is_ready
from shared.runtime.checkout import found_services
from shared.runtime.settings import PREFIX, Settings
from tests.conftest import SESSION_S
from tests.waiting import eventually

OF_ACCOUNTS = pytest.mark.skipif("accounts" not in found_services(), reason="`up` starts services of this checkout")


class Scripted(Worker):
    """A worker that ends when the test sets its exit code."""

    def __init__(self) -> None:
        self.service, self.name, self.log = "accounts", "accounts-1", Path("accounts-1.log")
        self._settings = Settings(http_port=8001)
        self.code: int | None = None
        self.spawned = self.stopped = 0

    @property
    def exit_code(self) -> int | None:
        return self.code

    def spawn(self) -> None:
        self.spawned += 1
        self.code = None

    def cause(self) -> str:
        return ""

    def stop(self, deadline_s: float = 0.0) -> bool:
        self.stopped += 1
        return True


def test_a_worker_that_ends_is_reported_and_restarted_after_growing_pauses(tmp_path: Path) -> None:
    said: list[str] = []
    worker = Scripted()
    keeper = Keeper(worker, said.append, tmp_path)
    now = time.monotonic()
    for pause_s in (1, 2, 4, 8, 16, 30, 30):
        worker.code = -9
        assert not keeper.tick(now)
        assert not keeper.tick(now + pause_s - 0.1)
        assert keeper.tick(now + pause_s)
        assert said.pop() == f"accounts-1 ended with -9; it is started again in {pause_s} s; its log is accounts-1.log"
        now += pause_s
    assert worker.spawned == 7
    assert said == []


def test_a_worker_that_ran_for_a_minute_is_restarted_soon(tmp_path: Path) -> None:
    worker = Scripted()
    keeper = Keeper(worker, lambda _: None, tmp_path)
    worker.code = 1
    later = time.monotonic() + 61
    keeper.tick(later)
    assert keeper.tick(later + 1)


@pytest.mark.parametrize("told", ["accounts", "accounts.8001"])
def test_a_worker_told_to_rest_is_stopped_once_and_started_after_the_rest(told: str, tmp_path: Path) -> None:
    worker, resting = Scripted(), tmp_path / told
    keeper = Keeper(worker, lambda _: None, tmp_path)
    (tmp_path / "accounts.8002").touch()
    resting.touch()
    assert keeper.tick(0.0)
    assert not keeper.tick(1.0)
    resting.unlink()
    assert keeper.tick(2.0)
    assert not keeper.tick(3.0)
    assert (worker.stopped, worker.spawned) == (1, 1)


@pytest.fixture
def kept(tmp_path: Path, fake_command: Command) -> Iterator[Path]:
    """The folder of an `up` of fake workers, which begins with none and has no broker."""
    stack = Stack(tmp_path, {}, command=fake_command)
    ends = Event()

    def check() -> None:
        if ends.is_set():
            raise KeyboardInterrupt

    vars(stack)["kafka"] = SimpleNamespace(bootstrap="127.0.0.1:1", check=check, stop=lambda: None)
    local_stack._write(stack)

    def run() -> None:
        with suppress(KeyboardInterrupt):
            keep_running(
                stack,
                lambda _: None,
                lambda: local_stack._write(stack),
                local_stack._resting(tmp_path),
                lambda: local_stack.wanted(tmp_path),
            )

    keeper = Thread(target=run)
    keeper.start()
    yield tmp_path
    ends.set()
    keeper.join()
    stack.stop()


def test_start_runs_a_service_that_up_did_not_know(kept: Path) -> None:
    (url,) = local_stack.start_workers(kept, "ready")
    assert is_ready(url)
    assert local_stack.stop_workers(kept, "ready") == [url]
    assert local_stack.start_workers(kept, "ready") == [url]


def test_one_worker_is_stopped_until_all_are_started(kept: Path) -> None:
    local_stack.start_workers(kept, "ready")
    local_stack.add_worker(kept, "ready")
    first, second = eventually(lambda: local_stack._urls(local_stack.found(kept), "ready"), lambda urls: len(urls) == 2)
    assert local_stack.stop_worker(kept, "ready", first) == first
    assert local_stack._urls(local_stack.found(kept), "ready") == [second]
    assert local_stack.start_workers(kept, "ready") == [first, second]


def test_two_who_start_a_service_at_once_start_it_once(kept: Path) -> None:
    """What was added stays until `up` ends."""
    with ThreadPoolExecutor(2) as pool:
        urls = list(pool.map(lambda _: local_stack.start_workers(kept, "ready"), range(2)))
    assert urls[0] == urls[1]
    assert len(urls[0]) == 1


def test_a_worker_that_can_not_be_added_ends_no_other(tmp_path: Path) -> None:
    said: list[str] = []

    def spawn(_: str) -> None:
        raise StageFailed("no port is free", "stop something")

    def check() -> None:
        if said:
            raise KeyboardInterrupt

    stack = SimpleNamespace(
        workers=[],
        runners=[],
        kafka=SimpleNamespace(check=check),
        spawn_worker=spawn,
        workers_of=lambda _: [Scripted()],
    )
    with pytest.raises(KeyboardInterrupt):
        keep_running(cast(Stack, stack), said.append, wanted=lambda: [Wanted("accounts", first=False)])
    assert said == ["no worker of accounts is added:\n  no port is free\n  fix: stop something"]


def test_start_says_at_once_that_a_worker_refuses_to_run(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stack, "READY_DEADLINE_S", SESSION_S * 10)
    with pytest.raises(StageFailed, match="crashing ended before it was ready") as failure:
        local_stack.start_workers(kept, "crashing")
    assert failure.value.log == kept / "logs"
    (kept / "stores").mkdir(exist_ok=True)
    (kept / "stores" / "mended").touch()
    (url,) = local_stack.start_workers(kept, "crashing")  # the one that has ended tells nothing of the next
    assert is_ready(url)


def test_start_refuses_a_setting_that_the_workers_of_up_would_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    up = local_stack.Record(identify(os.getpid()), (), Settings(standbys=1).environment(), {})
    monkeypatch.setenv("ONEFOLD_STANDBYS", "1")
    local_stack.check_settings(up)
    monkeypatch.setenv("ONEFOLD_STANDBYS", "2")
    with pytest.raises(StageFailed, match="and not ONEFOLD_STANDBYS from here"):
        local_stack.check_settings(up)


def test_up_is_told_which_services_there_are() -> None:
    error = CliRunner().invoke(cli.cli, ["up", "acounts"]).exception
    assert isinstance(error, StageFailed)
    assert error.fix == f"name one of: {', '.join(found_services())}"


def test_a_worker_that_is_added_is_told_of_and_kept_running(tmp_path: Path) -> None:
    workers: list[Scripted] = []

    def spawn(_: str) -> None:
        workers.append(Scripted())

    stack = SimpleNamespace(
        workers=workers,
        runners=[],
        kafka=SimpleNamespace(check=lambda: None),
        spawn_worker=spawn,
        spawn_runners=lambda: None,
        workers_of=lambda _: workers,
    )
    wishes, changes = iter([[Wanted("accounts", first=True)] * 2]), list[int]()

    def changed() -> None:
        changes.append(len(workers))
        if len(changes) == 2:
            raise KeyboardInterrupt

    def wanted() -> list[Wanted]:
        if changes and workers[0].code is None:
            workers[0].code = -9
        return next(wishes, [])

    with pytest.raises(KeyboardInterrupt):
        keep_running(cast(Stack, stack), lambda _: None, changed, tmp_path, wanted)
    assert (changes, workers[0].spawned) == ([1, 1], 1)


def test_only_workers_of_up_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="`up` of this checkout does not run"):
        local_stack.stop_workers(tmp_path, "accounts")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://192.0.2.1:8000"])
def test_a_worker_that_is_not_here_is_not_stopped(url: str, tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=f"nobody on this machine listens at {url}"):
        local_stack.stop_worker(tmp_path, "accounts", url)


def test_what_is_no_address_is_not_stopped(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="99999 is no address: Port out of range"):
        local_stack.stop_worker(tmp_path, "accounts", "http://127.0.0.1:99999")


def test_down_has_nothing_to_do_where_nothing_runs(tmp_path: Path) -> None:
    assert not local_stack.down(tmp_path)


@pytest.mark.parametrize("left", ["", "{}", '{"up": {"pid": 1}, "children": []}'], ids=["empty", "bare", "older"])
def test_a_damaged_record_is_named(left: str, tmp_path: Path) -> None:
    """As a power failure or another release leaves it."""
    (tmp_path / "running.json").write_text(left)
    with pytest.raises(StageFailed, match=f"{tmp_path}/running.json is damaged"):
        local_stack.down(tmp_path)


def test_up_without_workers_names_its_logs(capsys: pytest.CaptureFixture[str]) -> None:
    local_stack._announce(
        cast(Stack, SimpleNamespace(workers=[], runners=[], logs="the/logs")), "http://page", as_json=False
    )
    assert "the/logs" in capsys.readouterr().out


def test_when_a_worker_refuses_to_start_the_brokers_it_needs_can_be_started_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its `rebuild` or `reprocess` needs brokers, and no worker."""

    def refused(_: object) -> None:
        raise StageFailed("accounts-1 ended with 1 before it was ready", "resolve what the log says", "its.log")

    stack = SimpleNamespace(start_brokers=lambda: None, bootstrap="b:1", provision=list, start_workers=refused)
    monkeypatch.setattr(local_stack, "_write", lambda _: None)
    with pytest.raises(StageFailed, match="accounts-1 ended") as failure:
        local_stack._start(cast(Stack, stack), io.StringIO())
    assert failure.value.fix.startswith("resolve what the log says; `up --workers 0`")
    assert failure.value.log == "its.log"


def test_a_wrong_setting_is_reported_without_a_traceback() -> None:
    verb = [sys.executable, "-m", "shared.dev.cli", "topics"]
    run = subprocess.run(verb, env=os.environ | {"ONEFOLD_REPLICAS": "3"}, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr == "ONEFOLD_REPLICAS is unknown; did you mean: ONEFOLD_REPLICATION\n"


def test_an_unknown_service_is_refused_with_the_list_of_services() -> None:
    error = CliRunner().invoke(cli.cli, ["worker", "acounts"]).exception
    assert isinstance(error, StageFailed)
    assert error.fix == f"name one of: {', '.join(found_services())}"


@pytest.mark.usefixtures("known")
def test_a_worker_beside_up_may_have_its_stores_elsewhere_and_the_same_keys_of_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []
    for name in [each for each in os.environ if each.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    settings = Settings(bootstrap="127.0.0.1:1", data_dir=tmp_path / "up").environment()
    (tmp_path / "running.json").write_text(
        json.dumps({"up": asdict(identify(os.getpid())), "children": [], "settings": settings, "services": {}})
    )
    monkeypatch.setattr(local_stack, "ROOT", tmp_path)
    monkeypatch.setattr(os, "execv", lambda *_: given.append(dict(os.environ)))
    with patch.dict(os.environ, {"ONEFOLD_DATA_DIR": "/larger"}):
        assert CliRunner().invoke(cli.cli, ["worker", "accounts"]).exception is None
    (environment,) = given
    assert environment["ONEFOLD_DATA_DIR"] == "/larger"
    assert environment["ONEFOLD_PERSON_KEYS"] == f"sqlite:///{tmp_path}/up/person-keys.sqlite3"


@contextmanager
def running_up(root: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Runs `up --json` with accounts alone, in its own root and process; yields the process and its first line."""
    program = f"""
from pathlib import Path
from shared.dev import cli, up
up.ROOT = Path({str(root)!r})
cli.main()
"""
    command = [sys.executable, "-c", program, "up", "accounts", "--json"]
    environment = os.environ | {"ONEFOLD_SESSION_TIMEOUT_S": str(SESSION_S)}
    with (
        (root.parent / "stderr").open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as up,
    ):
        assert up.stdout
        try:
            yield up, json.loads(up.stdout.readline())
        finally:
            up.terminate()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "up"
    local_stack.down(tmp_path / "up")


def shows_a_page(url: str) -> bool:
    with suppress(httpx.TransportError):
        return "console.js" in httpx.get(url, trust_env=False).text
    return False


def processes_of(root: Path) -> list[Process]:
    record = local_stack.running(root)
    assert record
    return [record.up, *record.children]


def status_lines(about: str) -> list[str]:
    """The lines of one service or of the brokers, as `status` shows them."""
    environment = {"ONEFOLD_BOOTSTRAP": None}  # an earlier verb in this process has set it
    lines = CliRunner().invoke(cli.cli, ["status"], env=environment).output.splitlines()
    first = next(number for number, line in enumerate(lines) if line[2:].startswith(about))
    rest = itertools.takewhile(lambda line: line[2] == " ", lines[first + 1 :])
    return [lines[first], *rest]


@OF_ACCOUNTS
@pytest.mark.broker
def test_up_stays_until_down(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stack, "ROOT", root)
    with running_up(root) as (up, found):
        (worker,) = found["services"]["accounts"]
        assert found.keys() == {"bootstrap", "services", "console"}
        eventually(lambda: shows_a_page(found["console"]))
        assert httpx.get(f"{worker['url']}/readyz", timeout=30).status_code == 200

        topics = CliRunner().invoke(cli.cli, ["topics"])
        assert topics.exit_code == 0
        assert topics.output.count("as declared") == len(topics.output.splitlines()) - 1

        shown = [line.split() for line in status_lines("accounts")]
        assert shown == [
            ["accounts", "worker", worker["url"], "ready,", "partitions", *"01234567"],
            ["behind", "nothing", "waits"],
            ["parked", "nothing"],
        ]

        with pytest.raises(StageFailed, match=f"runs already: process {up.pid}, {worker['url']}"):
            local_stack.up(root, 1, 1, as_json=True, names=["accounts"])

        killed = identify(worker["pid"])
        WorkersOfUp(root).kill(worker["url"])
        eventually(lambda: not killed.running)
        with pytest.raises(LookupError, match="runs no worker at http://another"):
            WorkersOfUp(root).kill("http://another")
        eventually(lambda: is_ready(worker["url"]))
        assert "accounts-1 ended with -9" in (root.parent / "stderr").read_text()

        assert CliRunner().invoke(cli.cli, ["stop", "accounts"]).output == f"stopped {worker['url']}\n"
        assert not is_ready(worker["url"])
        assert status_lines("accounts") == ["! accounts     workers    none answers: its records wait"]
        assert CliRunner().invoke(cli.cli, ["start", "accounts"]).output == f"ready {worker['url']}\n"
        assert httpx.get(f"{worker['url']}/readyz", timeout=30).status_code == 200

        WorkersOfUp(root).add("accounts")
        ready = eventually(
            lambda: [line for line in status_lines("accounts") if "ready, partitions" in line],
            lambda lines: len(lines) == 2,
        )
        assert {line[2] for line in ready} == {"a", " "}  # both are of one service

        everything = processes_of(root)
        assert len(everything) == 5  # up, broker, two workers, page
        assert CliRunner().invoke(cli.cli, ["down"]).output == "stopped\n"
        assert up.wait(5) == 0
        assert not any(process.running for process in everything)


@pytest.mark.long  # in short, `down` ends those of one that runs
@OF_ACCOUNTS
@pytest.mark.broker
def test_down_ends_the_processes_that_a_killed_up_left_behind(root: Path) -> None:
    with running_up(root) as (up, _):
        everything = processes_of(root)
        assert len(everything) == 4  # up, broker, worker, page
        up.kill()
        up.wait()
        assert local_stack.down(root)
        assert not any(process.running for process in everything)
        assert not local_stack.down(root)


@OF_ACCOUNTS
@pytest.mark.broker
@pytest.mark.long  # in short, all tests that start a stack: each takes ports that are free
def test_two_that_run_side_by_side_share_neither_ports_nor_data(root: Path) -> None:
    another = root.parent / "another" / "up"
    another.parent.mkdir()
    try:
        with running_up(root) as (_, here), running_up(another) as (_, there):
            addresses = [*here.values(), *there.values()]
            assert len({json.dumps(each) for each in addresses}) == 6  # of each its brokers, workers and page
            urls = [found["services"]["accounts"][0]["url"] for found in (here, there)]
            httpx.post(f"{urls[0]}/accounts/ann", json={"holder": "Ann"}, timeout=60).raise_for_status()
            assert [httpx.get(f"{url}/accounts/ann", timeout=60).status_code for url in urls] == [200, 404]
    finally:
        local_stack.down(another)
