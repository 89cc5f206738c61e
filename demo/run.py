"""The demo from start to end: its own stack, the story, what happened, and the verdict."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path

import httpx

from demo.cdnow import BadData, Purchase, balances, read_purchases
from demo.client import Client
from demo.report import happened, suggestions
from demo.story import Findings, Story
from demo.verdict import Verdict, judge
from services.accounts.topology import TOPOLOGY
from shared.dev.environment import explain_os_error
from shared.dev.stack import Stack
from shared.dev.stages import Stage, StageFailed, stage
from shared.dev.up import Keeper
from shared.dev.worker import CHECKOUT
from shared.es.errors import OnefoldError
from shared.kafka.producer import CommandProducer

ROOT = CHECKOUT / ".onefold" / "demo"
STAGES = 9
_WORKERS = 2
_TICK_S = 0.5
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Begin = Callable[[str], AbstractContextManager[Stage]]
Sums = Callable[[Iterable[Purchase]], Mapping[str, int]]


def run(limit: int | None, stay: bool, sums: Sums = balances) -> Verdict:
    """Replays the first `limit` purchases; with `stay`, keeps everything running until it is interrupted.

    sums: what every customer should owe. Leaves no process behind, and its data and logs in ROOT.
    """
    _end_on_signals()
    try:
        with _only_one(ROOT):
            return _run(limit, stay, sums)
    except KeyboardInterrupt:
        return Verdict(False, "verdict: FAILED interrupted")
    except (OnefoldError, StageFailed, OSError) as error:
        failure = explain_os_error(error) if isinstance(error, OSError) else error
        print(failure)
        return Verdict(False, f"verdict: FAILED {str(failure).strip().splitlines()[0]}")


def _run(limit: int | None, stay: bool, sums: Sums) -> Verdict:
    begin = _numbered()
    purchases = _purchases(begin, limit)
    stack = Stack(ROOT, {TOPOLOGY.service: _WORKERS}, topologies=[TOPOLOGY])
    try:
        _start(stack, begin)
        findings = asyncio.run(_tell(purchases, stack, begin))
        expected = sums(purchases)
        verdict = judge(expected, {name: found.balance_cents for name, found in findings.accounts.items()})
        largest = max(expected, key=lambda customer: expected[customer])
        url = f"{stack.urls(TOPOLOGY.service)[0]}/accounts/{largest}"
        print(f"\n{happened(findings)}\n\n$ curl {url}\n{httpx.get(url).text}\n", flush=True)
        if stay:
            print(verdict.line)
            _stay(stack, largest)
        return verdict
    finally:
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        stack.stop()


def _end_on_signals() -> None:
    """Whatever ends this process does it as Ctrl-C, which asyncio turns into a cancellation while its loop runs."""
    for number in _END_SIGNALS:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _numbered() -> Begin:
    numbers = count(1)
    return lambda name: _stage(f"[{next(numbers)}/{STAGES}]", name)


@contextmanager
def _stage(mark: str, name: str) -> Iterator[Stage]:
    with stage(mark, name, sys.stdout) as now:
        try:
            yield now
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _purchases(begin: Begin, limit: int | None) -> list[Purchase]:
    """In the order they happened."""
    with begin("purchases") as now:
        try:
            purchases = sorted(read_purchases(), key=lambda purchase: purchase.date)[:limit]
        except (BadData, OSError) as error:
            raise StageFailed(str(error), "restore the file: git checkout demo/data") from error
        customers = len({purchase.customer for purchase in purchases})
        days = f"{purchases[0].date:%Y-%m-%d} to {purchases[-1].date:%Y-%m-%d}"
        now.done = f"{len(purchases):,} by {customers:,} customers, {days}"
    return purchases


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Holds `root`, empty, for one demo."""
    root.parent.mkdir(exist_ok=True)
    with root.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageFailed("a demo of this checkout runs already", "end it with Ctrl-C, then run again") from None
        if root.exists():
            shutil.rmtree(root)
        yield


def _start(stack: Stack, begin: Begin) -> None:
    with begin("broker") as now:
        stack.start_brokers()
        now.done = f"Kafka on {stack.bootstrap}, {len(stack.provision())} topics created"
    with begin("workers") as now:
        stack.start_workers(lambda ready, total: now.progress(ready, total, "ready,"))
        now.done = " and ".join(f"{worker.name} on {worker.url}" for worker in stack.workers)


async def _tell(purchases: Sequence[Purchase], stack: Stack, begin: Begin) -> Findings:
    producer = CommandProducer(stack.bootstrap, [TOPOLOGY])
    async with Client(stack.urls(TOPOLOGY.service)) as client:
        story = Story(purchases, stack, client, producer)
        for name, tell in {
            "accounts": story.open_accounts,
            "http": story.post_first,
            "replay": story.append_half,
            "crash": story.crash,
            "recovery": story.recover,
            "compare": story.compare,
        }.items():
            with begin(name) as now:
                now.done = await tell(now)
        await producer.close()
        return await story.findings()


def _stay(stack: Stack, account: str) -> None:
    worker, other = stack.workers_of(TOPOLOGY.service)
    print("\n" + suggestions(account, worker.url, other.url, other.pid, stack.logs), flush=True)
    keepers = [Keeper(each, lambda text: print(text, flush=True)) for each in stack.workers]
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_TICK_S)
            stack.kafka.check()
            for keeper in keepers:
                keeper.tick(time.monotonic())
    print("stopping", flush=True)
