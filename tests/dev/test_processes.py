"""A process is signalled only if it is still the one that was recorded."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.dev import processes
from shared.dev.processes import Process, children, end, identify
from tests.waiting import eventually

SLEEPING = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.fixture(params=["proc", "ps"])
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test with Linux's /proc, and with `ps` as on other systems."""
    if request.param == "ps":
        monkeypatch.setattr(processes, "_PROC", processes._PROC / "missing")
    elif not processes._PROC.exists():
        pytest.skip("this system has no /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEPING])
    yield process
    process.kill()
    process.wait()


pytestmark = pytest.mark.usefixtures("_system")


def test_a_dead_process_does_not_count_as_running_even_before_it_is_reaped(child: subprocess.Popen[bytes]) -> None:
    process = identify(child.pid)
    assert process in children()
    child.kill()
    eventually(lambda: process not in children())
    assert not process.running


NAMED = r"import time; open('/proc/self/comm', 'wb').write(b'caf\xc3'); print(flush=True); time.sleep(60)"


@pytest.mark.skipif(not processes._PROC.exists(), reason="this system has no /proc")
def test_a_process_name_truncated_within_a_character_hides_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", NAMED], stdout=subprocess.PIPE) as named:
        assert named.stdout
        named.stdout.readline()
        assert identify(named.pid) in children()
        named.kill()


def test_processes_that_cannot_be_read_are_skipped(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text

    def hidden(path: Path, **how: str) -> str:
        if path == Path("/proc/1/stat"):
            raise PermissionError(path)
        return read_text(path, **how)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert identify(child.pid) in children()


def test_a_process_that_does_not_exist_cannot_be_identified() -> None:
    with pytest.raises(ProcessLookupError):
        identify(2**22 + 1)


def test_a_process_that_reuses_a_recorded_id_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    recorded = replace(identify(child.pid), started="Thu Jan  1 00:00:00 1970")
    assert not recorded.running
    assert end([recorded], grace_s=1) == []
    assert child.poll() is None


def test_end_ends_running_processes_and_returns_them(child: subprocess.Popen[bytes]) -> None:
    process = identify(child.pid)
    assert end([process, Process(2**22 + 1, "0")], grace_s=5) == [process]
    assert child.wait() == -15


def test_end_kills_a_process_that_ignores_sigterm() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout
        stubborn.stdout.readline()
        end([identify(stubborn.pid)], grace_s=0.1)
        assert stubborn.wait() == -9


def test_a_process_is_not_its_own_child() -> None:
    assert identify(os.getpid()) not in children()
