"""A PostgreSQL server of one's own in a folder, from the programs of Debian's package, for tests and benchmarks."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from shared.dev.stages import StageFailed
from shared.dev.worker import free_port

START_S = 60.0
_USER = "postgres"  # the server refuses to be root's
# what tests write is theirs for minutes: a benchmark gives other options
_CHEAP = ("-c", "fsync=off")


def programs() -> Path | None:
    """The newest installed server's folder; None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parents[1].name))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Postgres:
    """A server on loopback that anybody on this machine may use."""

    def __init__(self, folder: Path, options: Sequence[str] = _CHEAP) -> None:
        """Raises StageFailed without the programs."""
        found = programs()
        if found is None:
            raise StageFailed("there is no PostgreSQL on this machine", "apt-get install postgresql")
        self._programs = found
        self._data = folder / "data"
        self._backup = folder / "backup"
        self._log = folder / "log"
        self._options = options
        self._port = free_port()

    @classmethod
    @contextmanager
    def temporary(cls, options: Sequence[str] = _CHEAP) -> Iterator[Self]:
        """A running server, in a folder that its user may enter, which a test's or a checkout's may not be."""
        with TemporaryDirectory(prefix="onefold-postgres-") as folder:
            Path(folder).chmod(0o755)
            server = cls(Path(folder) / "server", options)
            server.start()
            try:
                yield server
            finally:
                server.stop()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Returns once it answers; what a killed one had committed is there. Raises StageFailed."""
        if not self._data.exists():
            self._data.parent.mkdir(parents=True, exist_ok=True)
            if os.getuid() == 0:
                shutil.chown(self._data.parent, _USER)
            self._run("initdb", "-D", self._data, "-U", _USER, "--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8")
        options = " ".join(["-h 127.0.0.1", f"-p {self._port}", f"-k {self._data}", *self._options])
        self._run("pg_ctl", "start", "-D", self._data, "-l", self._log, "-o", options, "-t", str(int(START_S)), "-w")

    def stop(self) -> None:
        """At once, without waiting for clients; what is committed stays."""
        if self._pid() is not None:
            self._run("pg_ctl", "stop", "-D", self._data, "-m", "fast", "-w")

    def kill(self) -> None:
        """SIGKILL to the server; its children end as soon as they find that out."""
        if (pid := self._pid()) is None:
            return
        children = self._children(pid)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + START_S
        while any(Path(f"/proc/{each}").exists() for each in (pid, *children)):
            if time.monotonic() > deadline:
                raise StageFailed(f"PostgreSQL's processes {children} do not end", "end them")
            time.sleep(0.02)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def back_up(self) -> None:
        """Keeps the data of a server that is stopped, beside it."""
        subprocess.run(["cp", "-a", self._data, self._backup], check=True)

    def restore(self) -> None:
        """Makes the data of a server that is stopped those that were kept."""
        shutil.rmtree(self._data)
        self._backup.rename(self._data)

    def _pid(self) -> int | None:
        file = self._data / "postmaster.pid"
        return int(file.read_text().split()[0]) if file.exists() else None

    def _children(self, pid: int) -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def _run(self, program: str, *arguments: str | Path) -> None:
        """As the server's user if this process is root's."""
        command = [str(self._programs / program), *map(str, arguments)]
        user = _USER if os.getuid() == 0 else None
        environment = {**os.environ, "HOME": pwd.getpwnam(user).pw_dir} if user else None
        log = self._data.parent / f"{program}.log"  # a file: the server inherits it, and would keep a pipe open
        with log.open("w") as output:
            run = subprocess.run(command, stdout=output, stderr=output, user=user, env=environment, cwd="/")
        if run.returncode != 0:
            raise StageFailed(f"{program} failed: {log.read_text()[-500:]}", "see its log", self._log)
