"""A process that ends with the process that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# This shell becomes the child. The subshell waits for the end of the input, which comes however the parent dies.
# It belongs to the child's group, so that no other process can have the child's id when the last signal is sent.
_END_WITH_PARENT = """
exec 3<&0
(
    read _ <&3
    kill -TERM $$
    kill -CONT $$
    left={grace_s}
    while [ $((left -= 1)) -ge 0 ] && kill -0 $$; do sleep 1; done
    kill -KILL $$
) 2>/dev/null &
exec "$@" 3<&- </dev/null
"""


class Child:
    """Starts at once, in a group of its own: Ctrl-C in a terminal reaches only the parent, which ends its children."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
        grace_s: int = 30,
    ) -> None:
        """log: gets the output, appended. inherited: descriptors, numbered from 10.

        grace_s: after its parent's end, the time from SIGTERM to SIGKILL.
        """
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _END_WITH_PARENT.format(grace_s=grace_s), "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
                pass_fds=inherited,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends the signal without waiting; a paused process gets it, too."""
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)

    def wait(self, deadline_s: float | None = None) -> None:
        """Waits until it has ended, or for `deadline_s`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(deadline_s)

    def kill(self) -> None:
        """SIGKILL to the child and its subshell; returns once the child has ended."""
        # EPERM is how macOS says that none of the group is left
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
