"""Processes identified by more than their id, so that a reused id is never mistaken for the process that had it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

_PROC = Path("/proc/self/stat")
_TICK_S = 0.05
_LISTENS = "0A"


@dataclass(frozen=True, slots=True)
class Process:
    """A process, by its id and its start time as the system reports it."""

    pid: int
    started: str

    @property
    def running(self) -> bool:
        return _started(self.pid) == self.started


def identify(pid: int) -> Process:
    """The process that has this id now. Raises ProcessLookupError when none has."""
    started = _started(pid)
    if started is None:
        raise ProcessLookupError(pid)
    return Process(pid, started)


def children() -> list[Process]:
    """The processes that this one started and that still run."""
    own = str(os.getpid())
    return [Process(pid, started) for pid, (parent, started) in _all().items() if parent == own]


def listener(host: str, port: int) -> Process | None:
    """Who listens there; None if it is no address of this machine, and without /proc."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return None
    ours = {f"socket:[{inode}]" for inode in _listening_at(port)}
    for pid in _all() if ours else ():
        with suppress(OSError):  # it has ended, or is another user's
            if any(str(each.readlink()) in ours for each in Path(f"/proc/{pid}/fd").iterdir()):
                return identify(pid)
    return None


def _listening_at(port: int) -> Iterator[str]:
    """The inodes of sockets."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def end(processes: Iterable[Process], grace_s: float) -> list[Process]:
    """Ends those that still run: SIGTERM, and SIGKILL after the grace. Returns the ones that ran."""
    running = [process for process in processes if process.running]
    for process in running:
        send(process, signal.SIGCONT)
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(process.running for process in running) and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    for process in running:
        send(process, signal.SIGKILL)
    while any(process.running for process in running):
        time.sleep(_TICK_S)
    return running


def send(process: Process, number: signal.Signals) -> None:
    """If it is still the one that was recorded."""
    if process.running:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _started(pid: int) -> str | None:
    """When the process started; None if there is none, or only a zombie."""
    found = _of_proc(pid) if _PROC.exists() else _of_ps(f"-p{pid}").get(pid)
    return found[1] if found else None


def _all() -> dict[int, tuple[str, str]]:
    """(parent, start) of every process, by id."""
    if not _PROC.exists():
        return _of_ps("-ax")
    pids = [int(folder.name) for folder in _PROC.parent.parent.iterdir() if folder.name.isdecimal()]
    return {pid: found for pid in pids if (found := _of_proc(pid))}


def _of_proc(pid: int) -> tuple[str, str] | None:
    try:
        # a name is 15 bytes, perhaps cut within a character
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: another user's, with hidepid
        return None
    state, parent, ticks_since_boot = fields[0], fields[1], fields[19]
    return None if state in "ZX" else (parent, ticks_since_boot)


def _of_ps(selection: str) -> dict[int, tuple[str, str]]:
    """For systems without /proc, such as macOS."""
    command = ["ps", selection, "-o", "pid=,ppid=,state=,lstart="]
    plain = os.environ | {"LC_ALL": "C"}
    lines = subprocess.run(command, capture_output=True, text=True, errors="replace", env=plain).stdout
    rows = [line.split(maxsplit=3) for line in lines.splitlines()]
    return {int(pid): (parent, started) for pid, parent, state, started in rows if not state.startswith("Z")}


def user() -> str:
    """Who runs this process."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"
