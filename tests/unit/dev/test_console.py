"""The page's buttons reach workers of `up`, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import Barrier

import pytest

from shared.console.app import Order
from shared.console.picture import Version
from shared.dev import up as local_stack
from shared.dev.console import Runs, WorkersOfUp, command_of, versions_of
from shared.dev.console_process import page_port
from shared.dev.processes import Process, identify
from shared.kafka.brokers import BrokersUnavailable
from tests.accounts.topology import TOPOLOGY
from tests.waiting import eventually

URL = "http://127.0.0.1:1"
PARITY = Order(service="accounts", verb="parity")


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def recorded(root: Path, worker: Process) -> WorkersOfUp:
    """The buttons beside an `up` that started this worker."""
    services = {"accounts": [{"url": URL, "pid": worker.pid}]}
    record = {"up": asdict(identify(os.getpid())), "children": [asdict(worker)], "services": services}
    (root / "running.json").write_text(json.dumps({**record, "settings": {"ONEFOLD_BOOTSTRAP": "b:1"}}))
    return WorkersOfUp(root)


def test_a_recorded_worker_is_killed(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    recorded(tmp_path, identify(worker.pid)).kill(URL)
    assert worker.wait() == -9


def test_a_worker_that_has_ended_is_not_there_to_be_killed(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    buttons = recorded(tmp_path, identify(worker.pid))
    worker.kill()
    worker.wait()
    with pytest.raises(LookupError, match="does not run"):
        buttons.kill(URL)


def test_another_process_that_got_its_id_lives(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Until `up` starts it again, the id of a worker that has ended is free for any other process."""
    buttons = recorded(tmp_path, replace(identify(worker.pid), started="earlier"))
    with pytest.raises(LookupError, match="does not run"):
        buttons.kill(URL)
    assert worker.poll() is None


def test_what_is_added_is_a_worker_of_up(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """So `status` knows it, it is kept running, and the next one has its stores."""
    buttons = recorded(tmp_path, identify(worker.pid))
    for _ in range(2):
        buttons.add("accounts")
    assert list(local_stack.wanted(tmp_path)) == [("accounts", False), ("accounts", False)]
    assert list(local_stack.wanted(tmp_path)) == []
    with pytest.raises(LookupError, match="`up` runs no vouchers; fix: name one that it runs: accounts"):
        buttons.add("vouchers")


def test_one_run_at_a_time_and_its_lines_and_code_are_kept(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo it looks; until [ -e {go} ]; do sleep 0.05; done; echo they DIFFER; exit 1"
    runs = Runs(tmp_path, ["parity"], lambda _: ["/bin/sh", "-c", script])
    with pytest.raises(LookupError, match="no switch is run here"):
        runs.begin(Order(service="accounts", verb="switch"))
    runs.begin(PARITY)
    eventually(
        lambda: [(each.said, each.exit_code) for each in runs.seen()], lambda seen: seen == [(["it looks"], None)]
    )
    with pytest.raises(LookupError, match="parity of accounts runs: one at a time"):
        runs.begin(Order(service="sinks", verb="parity"))
    go.touch()
    eventually(lambda: [each.exit_code for each in runs.seen()], lambda codes: codes == [1])
    assert [each.said for each in runs.seen()] == [["it looks", "they DIFFER"]]
    runs.begin(PARITY)
    eventually(lambda: [each.said for each in runs.seen()], lambda said: said == [["it looks", "they DIFFER"]])
    (log,) = tmp_path.glob("run-accounts-*.log")
    log.unlink()
    assert [each.said for each in runs.seen()] == [["its log is gone"]]
    runs._begun["accounts"][0].kill()


def test_of_several_runs_that_are_begun_at_once_one_runs(tmp_path: Path) -> None:
    runs, together = Runs(tmp_path, ["parity"], lambda _: ["/bin/sh", "-c", "exec sleep 60"]), Barrier(3)

    def begins(service: str) -> bool:
        together.wait()
        with suppress(LookupError):
            runs.begin(Order(service=service, verb="parity"))
            return True
        return False

    with ThreadPoolExecutor(3) as pool:
        begun = list(pool.map(begins, ("accounts", "accounts", "sinks")))
    assert (sum(begun), len(runs.seen())) == (1, 1)
    for child, *_ in runs._begun.values():
        child.kill()


def test_what_is_run_is_what_one_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.dev.console.found_services", lambda: ["tills"])
    switch = Order(service="tills", verb="switch", reason="-counts returns")
    assert command_of(switch)[-3:] == ["switch", "tills", "--reason=-counts returns"]
    retire = command_of(Order(service="tills", verb="retire", version=1, reason="old"))
    assert retire[-5:] == ["retire", "tills", "1", "--yes", "--reason=old"]
    with pytest.raises(LookupError, match="which version"):
        command_of(Order(service="tills", verb="retire"))
    with pytest.raises(LookupError, match="no service is called --help"):
        command_of(Order(service="--help", verb="compare"))


@pytest.mark.parametrize(("fails", "code"), [("", 0), ("stop", 7), ("rebuild", 7), ("start", 7)])
def test_a_rebuild_leaves_its_service_running_also_when_it_fails(
    fails: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.dev.console.found_services", lambda: ["tills"])
    typed, python = command_of(Order(service="tills", verb="rebuild")), tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@"\n[ "$2" != "{fails}" ] || exit 7\n')
    python.chmod(0o755)
    run = subprocess.run([*typed[:3], python, "dev.py", "tills"], stdout=subprocess.PIPE, text=True)
    steps = ["stop", "start"] if fails == "stop" else ["stop", "rebuild", "start"]
    assert run.stdout.splitlines() == [f"dev.py {each} tills" for each in steps]
    assert run.returncode == code


def test_a_group_that_may_not_be_described_hides_no_other_service(monkeypatch: pytest.MonkeyPatch) -> None:
    class Guarded:
        def __init__(self, _: str) -> None:
            pass

        def members(self, group: str) -> list[str]:
            if group.startswith("secret"):
                raise BrokersUnavailable(f"{group} may not be described")
            return ["a member"]

        def positions(self, _: str) -> dict[str, int]:
            return {}

    monkeypatch.setattr("shared.dev.console.Brokers", Guarded)
    services = [replace(TOPOLOGY, tables=(), topics=(), service=name) for name in ("secret", "open")]
    found = versions_of(services, "b:1")
    assert found["secret"] == "secret may not be described"
    assert [each.version for each in found["open"] if isinstance(each, Version)] == [1, 2]


def test_no_two_pages_are_given_one_port() -> None:
    """Each listens seconds later, as where two `up`s start at once."""
    program = "from shared.dev.console_process import page_port; print(page_port())"
    ours = {page_port(), page_port()}
    other = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert len(ours | {int(other.stdout)}) == 3
