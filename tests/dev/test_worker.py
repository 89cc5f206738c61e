"""A worker is started, found dead or late, killed, paused and started again under the same name and port."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from shared.dev.processes import identify
from shared.dev.stages import StageFailed
from shared.dev.worker import Worker, cause_in, free_port
from shared.runtime.checkout import found_services
from shared.runtime.settings import Settings
from tests.waiting import eventually

Command = Callable[[str], list[str]]
New = Callable[[str], Worker]


@pytest.fixture
def new(tmp_path: Path, fake_command: Command) -> Iterator[New]:
    started: list[Worker] = []

    def make(behaviour: str) -> Worker:
        settings = Settings(bootstrap="127.0.0.1:1", data_dir=tmp_path / "stores")
        worker = Worker(behaviour, "1", settings, tmp_path / "logs" / "worker.log", fake_command)
        started.append(worker)
        return worker

    yield make
    for worker in started:
        worker.kill()


def test_a_worker_gets_the_settings_given_and_no_onefold_variable_of_its_parent(
    new: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new("ready")
    monkeypatch.setenv("ONEFOLD_STANDBYS", "5")
    worker.start()
    environment = dict(line.split("=", 1) for line in httpx.get(worker.url).text.splitlines())
    assert environment["ONEFOLD_STANDBYS"] == "0"
    assert environment["ONEFOLD_BOOTSTRAP"] == "127.0.0.1:1"
    assert environment["ONEFOLD_DATA_DIR"] == str(tmp_path / "stores")
    assert worker.url == f"http://127.0.0.1:{environment['ONEFOLD_HTTP_PORT']}"


def test_a_crash_at_the_start_fails_at_once_and_shows_the_end_of_the_log(new: New) -> None:
    worker = new("crashing")
    with pytest.raises(StageFailed, match="crashing-1 ended with 1 before") as failed:
        worker.start(deadline_s=30)
    assert "no reason to live" in str(failed.value)
    assert f"log: {worker.log}" in str(failed.value)


def test_the_cause_is_the_first_fatal_error_of_the_present_process(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    missing = "TopicsMissing('missing: inventory.event.v1; fix: run `provision`')"
    lines: list[dict[str, str]] = [
        {"level": "critical", "event": "of the process before"},
        {"level": "error", "event": "Heartbeat session expired"},
        {"level": "error", "event": f"[^EngineWorker]: Error: {missing}", "exception": "Traceback …"},
        {"level": "error", "event": "Event loop is closed", "exception": "Traceback …"},
    ]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    start = len(json.dumps(lines[0])) + 1
    assert cause_in(log, start) == missing
    with log.open("a") as more:
        more.write(json.dumps({"level": "critical", "event": "the worker stops", "reason": "too large"}) + "\n")
    assert cause_in(log, start) == "the worker stops: too large"
    log.write_text("Traceback (most recent call last):\nModuleNotFoundError: No module named 'nothing'\n")
    assert cause_in(log) == "ModuleNotFoundError: No module named 'nothing'"
    log.write_text("a banner\n{'no': 'JSON'}\n3\n")
    assert cause_in(log) == ""
    assert cause_in(tmp_path / "missing.log") == ""


def test_a_dead_worker_is_not_ready_even_if_another_answers_at_its_port(new: New) -> None:
    other, worker = new("ready"), new("crashing")
    other.start()
    worker.change(http_port=int(other.url.rsplit(":", 1)[1]))
    worker.spawn()
    eventually(lambda: worker.exit_code is not None)
    with pytest.raises(StageFailed, match="crashing-1 ended with 1 before"):
        worker.await_ready()


def test_a_worker_that_never_becomes_ready_fails_at_the_deadline(new: New) -> None:
    with pytest.raises(StageFailed, match="starting-1 is not ready after 0 s"):
        new("starting").start(deadline_s=0.4)


def test_a_killed_worker_restarts_at_its_old_address(new: New) -> None:
    worker = new("ready")
    worker.start()
    first, url = worker.pid, worker.url
    worker.kill()
    assert not worker.is_ready()
    with pytest.raises(ProcessLookupError):
        _ = worker.pid
    worker.start()
    assert worker.url == url
    assert worker.pid != first


def test_a_worker_is_at_its_old_address_in_the_next_process_too(tmp_path: Path) -> None:
    """After a loss of power its group still has the member at that address, and lets in no other one under its name."""

    def address(store: Path) -> str:
        with worker_of_another_process(store) as url:
            return url

    stores = [tmp_path / name for name in "abcde"]  # a test beside this one may have the port of some
    assert any(address(store) == address(store) for store in stores)


def test_no_other_process_is_given_the_port_of_a_worker_that_does_not_run(new: New, tmp_path: Path) -> None:
    """Else its clients would ask that process's worker, and it could not start again."""
    with worker_of_another_process(tmp_path) as first:
        assert new("ready").url != first


def test_no_other_process_is_given_the_port_of_one_that_became_a_worker() -> None:
    """`worker SERVICE` is that worker from then on, and listens seconds later."""
    ports = range(8000, 9000)
    then = "[sys.executable, '-c', f'print({port}, flush=True); input()']"
    program = (
        "import os, sys; from shared.dev.worker import free_port\n"
        f"port = free_port({ports}); os.execv(sys.executable, {then})"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) != free_port(ports)
        process.communicate("\n")


@contextmanager
def worker_of_another_process(tmp_path: Path) -> Iterator[str]:
    """The address of a worker there with the stores of `new`'s, which is not started. At the end the process ends."""
    program = (
        "import pathlib; from shared.dev.worker import Worker; from shared.runtime.settings import Settings\n"
        f"settings = Settings(bootstrap='127.0.0.1:1', data_dir=pathlib.Path({str(tmp_path / 'stores')!r}))\n"
        f"print(Worker('ready', '1', settings, pathlib.Path('unused')).url, flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


def test_an_unexpected_end_shows_as_the_exit_code(new: New) -> None:
    worker = new("ready")
    worker.start()
    assert worker.exit_code is None
    os.kill(worker.pid, 9)
    eventually(lambda: worker.exit_code == -9)


def test_a_paused_worker_does_not_answer_until_it_is_resumed(new: New) -> None:
    worker = new("ready")
    worker.start()
    worker.pause()
    assert not worker.is_ready()
    worker.resume()
    eventually(worker.is_ready)


@pytest.mark.parametrize("paused", [False, True])
def test_stop_ends_a_worker_even_if_it_is_paused(new: New, paused: bool) -> None:
    worker = new("ready")
    worker.start()
    process = identify(worker.pid)
    if paused:
        worker.pause()
    assert worker.stop(deadline_s=30)
    assert not process.running


def test_stop_kills_a_worker_that_ignores_sigterm(new: New) -> None:
    worker = new("stubborn")
    worker.start()
    process = identify(worker.pid)
    assert not worker.stop(deadline_s=0.2)
    assert not process.running


def test_stop_tells_of_a_worker_that_is_killed_because_it_was_never_ready(new: New) -> None:
    worker = new("starting")
    worker.spawn()
    assert not worker.stop()


def test_a_worker_ends_with_its_parent_even_if_the_parent_is_killed(tmp_path: Path, fake_command: Command) -> None:
    program = f"""
import time
from pathlib import Path
from shared.dev.worker import Worker
from shared.runtime.settings import Settings
log = Path({str(tmp_path / "worker.log")!r})
worker = Worker("ready", "1", Settings(), log, lambda _: {fake_command("ready")})
worker.start()
print(worker.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        process = identify(int(parent.stdout.readline()))
        parent.kill()
    eventually(lambda: not process.running)


@pytest.mark.skipif(not found_services(), reason="no service has a worker")
def test_a_wrong_setting_is_reported_in_one_line() -> None:
    command = [sys.executable, "-m", "shared.dev.cli", "worker", found_services()[0]]
    environment = os.environ | {"ONEFOLD_BOOTSTRAP": "127.0.0.1:1", "ONEFOLD_REPLICATION": "two"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "ONEFOLD_REPLICATION='two' is not allowed: copies of every topic, 1 to 9\n"


def test_a_taken_port_is_not_free() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as taken,
        pytest.raises(StageFailed, match="no port is free"),
    ):
        free_port([taken.getsockname()[1]])


def test_a_free_port_is_given_out_only_once() -> None:
    assert len({free_port() for _ in range(50)}) == 50
