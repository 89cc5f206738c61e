"""One worker of the tests' own accounts that writes down when each command that comes alone has got how far.

BENCH_STEPS=file faust -A bench.sides.timed_accounts worker
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from shared.kafka.producer import CommandProducer
from shared.runtime import failpoints
from tests.accounts.app import app as app

STEPS = ("before_produce", "after_produce", "before_offsets", "after_offsets", "after_commit", "after_store")
"""What a commit reaches, in this order."""

_send, _reached = CommandProducer.send, failpoints.reached
_file = Path(os.environ["BENCH_STEPS"]).open("a", buffering=1)  # noqa: SIM115  # for as long as the process runs
_appended: list[float] = []
_times: list[float] = []


def send(self: CommandProducer, *record: str | bytes | int | None) -> asyncio.Future[tuple[int, int]]:
    """A line begins: when it was appended, and when the brokers had it."""
    began = time.perf_counter()
    sent = _send(self, *record)  # type: ignore[arg-type]
    sent.add_done_callback(lambda _: _appended.extend((began, time.perf_counter())))
    return sent


def reached(step: str) -> None:
    """A line ends with the commit, if there was one command for it."""
    if step == STEPS[0]:
        _times[:] = _appended
        _appended.clear()
    if step in STEPS:
        _times.append(time.perf_counter())
    if step == STEPS[-1] and len(_times) == 2 + len(STEPS):
        print(*_times, file=_file)
    _reached(step)


CommandProducer.send = send  # type: ignore[method-assign,assignment]
failpoints.reached = reached
