"""How the demo and the drill run: one at a time, a numbered line per stage, and ended by any signal as by Ctrl-C."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

from demo.cdnow import BadData, Purchase, first_purchases
from demo.verdict import Verdict
from shared.dev.environment import explain_os_error
from shared.dev.stages import Stage, StageFailed, stage
from shared.domain.errors import OnefoldError

_PATIENCE = {"ORDERS_DEADLINE_S": "3600"}  # on a slow machine an order may wait long for an answer
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Begin = Callable[[str], AbstractContextManager[Stage]]


def staged(root: Path, stages: int, perform: Callable[[Begin], Verdict]) -> Verdict:
    """The verdict of `perform`, or why there is none. It has `root`, emptied, to itself, and begins `stages` stages."""
    _end_on_signals()
    os.environ.update(_PATIENCE)
    try:
        with _only_one(root):
            return perform(_numbered(stages))
    except KeyboardInterrupt:
        return Verdict(False, "verdict: FAILED interrupted")
    except (OnefoldError, StageFailed, OSError) as error:
        failure = explain_os_error(error) if isinstance(error, OSError) else error
        print(failure)
        return Verdict(False, f"verdict: FAILED {str(failure).strip().splitlines()[0]}")


def ignore_signals() -> None:
    """From here on nothing interrupts the end of what was started."""
    for number in _END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def purchases_until(limit: int | None, begin: Begin) -> list[Purchase]:
    """The first `limit` purchases, in the order they happened."""
    with begin("purchases") as now:
        try:
            purchases = first_purchases(limit)
        except (BadData, OSError) as error:
            raise StageFailed(str(error), "restore the file: git checkout demo/data") from error
        customers = len({purchase.customer for purchase in purchases})
        days = f"{purchases[0].date:%Y-%m-%d} to {purchases[-1].date:%Y-%m-%d}"
        now.done = f"{len(purchases):,} by {customers:,} customers, {days}"
    return purchases


def _end_on_signals() -> None:
    """Each of these signals acts like Ctrl-C, which asyncio turns into a cancellation while its loop runs."""
    for number in _END_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _numbered(stages: int) -> Begin:
    numbers = count(1)
    return lambda name: _stage(f"[{next(numbers):>2}/{stages}]", name)


@contextmanager
def _stage(mark: str, name: str) -> Iterator[Stage]:
    with stage(mark, name, sys.stdout) as now:
        try:
            yield now
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Holds `root`, emptied, for one run at a time."""
    root.parent.mkdir(exist_ok=True)
    with root.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"a {root.name} of this checkout runs already"
            raise StageFailed(problem, "end it with Ctrl-C, then run again") from None
        gone = root.with_suffix(".gone")
        shutil.rmtree(gone, ignore_errors=True)
        if root.exists():  # renamed first: what a killed run started goes on writing for some seconds
            root.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        yield
