"""The checkout's own `.venv`: it holds what the lock files say, and is trusted only when its stamp says it is complete.

Standard library only: this module makes the environment that everything else runs in.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.dev.packages import diagnose, has_begun, progress_of
from shared.dev.stages import Stage, StageFailed, stage

_INCLUDES = {"dev": ("worker",)}
_TICK_S = 0.2

Plan = Literal["ready", "add", "rebuild"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a `.venv` holds: SHA-256 by lock name (none while being made), and the checkout it is for.

    python: the interpreter that its packages are for, such as python3.11; empty in a stamp from before this field.
    """

    root: str
    locks: Mapping[str, str]
    python: str = ""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The paths of one checkout that the set-up reads and writes."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def interpreter(self) -> str:
        """What `python` resolves to, such as python3.11; an upgrade of the system's Python changes it."""
        return self.python.resolve().name

    @property
    def site_packages(self) -> Path:
        return next((self.venv / "lib").glob("python3.*/site-packages"))

    @property
    def stamp(self) -> Path:
        return self.venv / "onefold.json"

    @property
    def state(self) -> Path:
        return self.root / ".onefold"

    @property
    def locks(self) -> Path:
        return self.root / "requirements"

    def log(self, name: str) -> Path:
        return self.state / "logs" / f"{name}.log"


def ensure(checkout: Checkout, names: Sequence[str]) -> Path:
    """The interpreter of a `.venv` that holds the named locks; made or completed when it does not.

    Raises StageFailed. Any number of processes may call it at once: one works, the others wait.
    """
    if _plan_now(checkout, names) == "ready":
        return checkout.python
    with _only_one(checkout) as lock_fd:
        plan = _plan_now(checkout, names)
        if plan == "rebuild":
            _make_venv(checkout, lock_fd)
        if plan != "ready":
            _install(checkout, names, lock_fd)
    return checkout.python


def plan_for(root: str, stamp: Stamp | None, current: Mapping[str, str], names: Sequence[str]) -> Plan:
    """What a `.venv` with `stamp` needs to hold the named locks. current: SHA-256 by lock name."""
    if stamp is None or stamp.root != root:
        return "rebuild"
    if all(stamp.locks.get(name) == current[name] for name in names):
        return "ready"
    stale = any(current.get(name) != digest for name, digest in stamp.locks.items())
    return "rebuild" if stale or not stamp.locks else "add"


def _plan_now(checkout: Checkout, names: Sequence[str]) -> Plan:
    digests = _digests(checkout)
    if lost := [f"{name}.lock" for name in names if name not in digests]:
        raise StageFailed(f"{', '.join(lost)} is not in {checkout.locks}", "restore it: git checkout requirements")
    if not checkout.python.exists():
        return "rebuild"
    stamp = _read_stamp(checkout)
    if stamp and stamp.python not in ("", checkout.interpreter):
        return "rebuild"
    return plan_for(str(checkout.root), stamp, digests, names)


def _digests(checkout: Checkout) -> dict[str, str]:
    locks = checkout.locks.glob("*.lock")
    return {lock.stem: hashlib.sha256(lock.read_bytes()).hexdigest() for lock in locks}


def _read_stamp(checkout: Checkout) -> Stamp | None:
    try:
        return Stamp(**json.loads(checkout.stamp.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write_stamp(checkout: Checkout, locks: Mapping[str, str]) -> None:
    fresh = checkout.stamp.with_suffix(".new")
    stamp = {"root": str(checkout.root), "locks": dict(locks), "python": checkout.interpreter}
    fresh.write_text(json.dumps(stamp, indent=2) + "\n")
    fresh.replace(checkout.stamp)


@contextmanager
def _only_one(checkout: Checkout) -> Iterator[int]:
    """Holds this checkout's set-up lock, as does every child that is given the descriptor."""
    path = checkout.state / "setup.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with stage("[setup]", "waiting for another dev.py:") as waiting:
                fcntl.flock(handle, fcntl.LOCK_EX)
                waiting.done = "it has finished"
        yield handle.fileno()


def _make_venv(checkout: Checkout, lock_fd: int) -> None:
    with stage("[setup]", "venv") as now:
        python = _outer_python(checkout)
        _remove_own_venv(checkout)
        checkout.venv.mkdir()
        _write_stamp(checkout, {})
        _run([python, "-I", "-m", "venv", str(checkout.venv)], checkout, "venv", lock_fd)
        # relative, so that it is ASCII: Python reads it in the locale's encoding before anything can be set
        up = os.path.relpath(checkout.root, checkout.site_packages)
        (checkout.site_packages / "onefold.pth").write_text(f"{up}\n")
        now.done = f"Python {sys.version.split()[0]} in {checkout.venv.name}"


def _remove_own_venv(checkout: Checkout) -> None:
    if not os.path.lexists(checkout.venv):
        return
    if checkout.venv.is_symlink() or _is_foreign(checkout):
        raise StageFailed(f"{checkout.venv} was not made by dev.py", "move it away or delete it, then run again")
    # moved first: a half-removed one would have lost its stamp, and look like someone else's
    discarded = checkout.state / "discarded-venv"
    if discarded.exists():
        shutil.rmtree(discarded)
    checkout.venv.rename(discarded)
    shutil.rmtree(discarded)


def _is_foreign(checkout: Checkout) -> bool:
    files = (each.name for each in checkout.venv.iterdir())
    return not checkout.stamp.exists() and any(not name.startswith(checkout.stamp.stem) for name in files)


def _outer_python(checkout: Checkout) -> str:
    """An interpreter that survives the removal of `.venv`, also when `dev.py` itself runs in it."""
    return os.path.realpath(sys.executable) if Path(sys.prefix).resolve() == checkout.venv else sys.executable


def _install(checkout: Checkout, names: Sequence[str], lock_fd: int) -> None:
    stamp = _read_stamp(checkout)
    held = dict(stamp.locks) if stamp else {}
    digests = _digests(checkout)
    for name in (name for name in names if held.get(name) != digests[name]):
        _write_stamp(checkout, {})
        try:
            with stage("[setup]", "packages") as now:
                _install_lock(checkout, name, now, lock_fd)
        except BaseException:
            log = checkout.log(f"packages-{name}")
            if not (log.exists() and has_begun(log.read_text(errors="replace"))):
                _write_stamp(checkout, held)
            raise
        held |= {each: digests[each] for each in (name, *_INCLUDES.get(name, ()))}
        _write_stamp(checkout, held)


def _install_lock(checkout: Checkout, name: str, now: Stage, lock_fd: int) -> None:
    lock = checkout.locks / f"{name}.lock"
    pins = sum("==" in line for line in lock.read_text().splitlines() if not line.startswith((" ", "#")))
    before = _installed(checkout)

    def draw(log: str) -> None:
        now.progress(*progress_of(log, pins, _installed(checkout) - before))

    # --no-deps: a lock names every package, so pip has nothing to resolve
    pip = [str(checkout.python), "-I", "-m", "pip", "--no-input", "--disable-pip-version-check"]
    command = [*pip, "install", "--require-hashes", "--no-deps", "--progress-bar=off", "-r", str(lock)]
    _run(command, checkout, f"packages-{name}", lock_fd, draw)
    now.done = f"{_installed(checkout) - before} packages of {lock.relative_to(checkout.root)} installed"


def _installed(checkout: Checkout) -> int:
    return sum(1 for _ in checkout.site_packages.glob("*.dist-info"))


def _run(
    command: list[str], checkout: Checkout, name: str, lock_fd: int, tick: Callable[[str], None] | None = None
) -> None:
    """Runs a command with its output in a log; `tick` sees the log so far. Raises StageFailed."""
    log = checkout.log(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    # PIP_USER: "pip install --user" as a person's default cannot work inside a virtual environment
    environment = os.environ | {"PIP_USER": "0", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as sink:
        # pass_fds: the set-up lock stays held until the last process that writes into .venv is gone
        child = subprocess.Popen(
            command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env=environment, pass_fds=(lock_fd,)
        )
        try:
            while child.poll() is None:
                if tick:
                    tick(log.read_text(errors="replace"))
                time.sleep(_TICK_S)
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    if child.returncode != 0:
        problem, fix = diagnose(log.read_text(errors="replace"), shutil.disk_usage(checkout.root).free)
        raise StageFailed(problem, fix, log)


def explain_os_error(error: OSError) -> StageFailed:
    """The same failure, with what to do about it."""
    fix = "see the path above"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free some disk space (about 1 GB), then run again: what is half made is made again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "make the checkout writable for you (was it ever run with sudo?), then run again"
    return StageFailed(str(error), fix)
