"""The demo from start to end: its own stack, the story, what happened, and the verdict."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path

import httpx

from demo import spark
from demo.books import Books, expected_books
from demo.cdnow import BadData, Purchase, read_purchases
from demo.report import happened, suggestions
from demo.shop import SERVICES, Shop
from demo.story import Findings, Story
from demo.verdict import Verdict, judge
from shared.dev.environment import explain_os_error
from shared.dev.keeper import keep_running
from shared.dev.stack import Stack
from shared.dev.stages import Stage, StageFailed, stage
from shared.dev.worker import CHECKOUT
from shared.es.errors import OnefoldError
from shared.kafka.producer import CommandProducer
from shared.kafka.provision import load_topologies

ROOT = CHECKOUT / ".onefold" / "demo"
STAGES = 11
_WORKERS = dict.fromkeys(SERVICES, 1) | {"orders": 2}
_PATIENCE = {"ORDERS_DEADLINE_S": "3600"}  # on a slow machine an order may wait long for an answer
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Begin = Callable[[str], AbstractContextManager[Stage]]
Expect = Callable[[Iterable[Purchase]], Books]


def run(limit: int | None, stay: bool, expect: Expect = expected_books) -> Verdict:
    """Orders the first `limit` purchases; with `stay`, keeps everything running until it is interrupted.

    expect: what the books should say. Leaves no process behind, and its data and logs in ROOT.
    """
    _end_on_signals()
    try:
        with _only_one(ROOT):
            return _run(limit, stay, expect)
    except KeyboardInterrupt:
        return Verdict(False, "verdict: FAILED interrupted")
    except (OnefoldError, StageFailed, OSError) as error:
        failure = explain_os_error(error) if isinstance(error, OSError) else error
        print(failure)
        return Verdict(False, f"verdict: FAILED {str(failure).strip().splitlines()[0]}")


def _run(limit: int | None, stay: bool, expect: Expect) -> Verdict:
    begin = _numbered()
    purchases = _purchases(begin, limit)
    expected = expect(purchases)
    os.environ.update(_PATIENCE)
    stack = Stack(ROOT, _WORKERS, topologies=[each for each in load_topologies() if each.service in SERVICES])
    try:
        _start(stack, begin)
        findings = asyncio.run(_tell(purchases, expected, stack, begin))
        parity = _parity(stack, begin)
        largest = max(expected.accounts, key=lambda customer: expected.accounts[customer])
        url = f"{stack.urls('accounts')[0]}/accounts/{largest}"
        print(f"\n{happened(findings)}\n\n$ curl {url}\n{httpx.get(url).text}\n\n{parity.line}", flush=True)
        verdict = judge(asdict(expected), asdict(findings.found.books), [*findings.found.unequal, *parity.problems])
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
    return lambda name: _stage(f"[{next(numbers):>2}/{STAGES}]", name)


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
        ports = ", ".join(f"{worker.name} {worker.url.rpartition(':')[2]}" for worker in stack.workers)
        now.done = f"on ports of 127.0.0.1: {ports}"


async def _tell(purchases: Sequence[Purchase], expected: Books, stack: Stack, begin: Begin) -> Findings:
    producer = CommandProducer(stack.bootstrap, load_topologies())
    async with Shop(stack) as shop:
        story = Story(purchases, expected, stack, shop, producer)
        for name, tell in {
            "opening": story.open,
            "http": story.post_first,
            "replay": story.replay,
            "crash": story.crash,
            "recovery": story.recover,
            "flow": story.flow,
            "compare": story.compare,
        }.items():
            with begin(name) as now:
                now.done = await tell(now)
        await producer.close()
        return story.findings()


def _parity(stack: Stack, begin: Begin) -> spark.Parity:
    problem = spark.install()
    with begin("spark") as now:
        found = spark.left_out(problem) if problem else spark.parity(stack.bootstrap)
        now.done = found.line
    return found


def _stay(stack: Stack, account: str) -> None:
    urls = {name: stack.urls(name)[0] for name in SERVICES}
    print("\n" + suggestions(account, urls, stack.workers_of("orders")[1].pid, stack.logs), flush=True)
    with suppress(KeyboardInterrupt):
        keep_running(stack, lambda text: print(text, flush=True))
    print("stopping", flush=True)
