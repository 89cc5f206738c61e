"""The demo from start to end: its own stack, the story, what happened, and the verdict."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict

import httpx

from demo import spark
from demo.books import Books, expected_books
from demo.cdnow import Purchase
from demo.courier import Courier
from demo.report import happened, suggestions
from demo.shop import SERVICES, Shop
from demo.staging import Begin, ignore_signals, purchases_until, staged
from demo.story import Findings, Story
from demo.verdict import Verdict, judge
from shared.dev.console_process import ConsoleProcess
from shared.dev.keeper import keep_running
from shared.dev.stack import Stack
from shared.kafka.producer import CommandProducer
from shared.operations.provision import load_topologies
from shared.runtime.checkout import CHECKOUT

ROOT = CHECKOUT / ".onefold" / "demo"
STAGES = 11
_WORKERS = dict.fromkeys(SERVICES, 1) | {"orders": 2}

Expect = Callable[[Iterable[Purchase]], Books]


def run(limit: int | None, stay: bool, expect: Expect = expected_books) -> Verdict:
    """Orders the first `limit` purchases; with `stay`, keeps everything running until it is interrupted.

    expect: what the books should say. Leaves no process behind, and its data and logs in ROOT.
    """
    return staged(ROOT, STAGES, lambda begin: _run(begin, limit, stay, expect))


def _run(begin: Begin, limit: int | None, stay: bool, expect: Expect) -> Verdict:
    purchases = purchases_until(limit, begin)
    expected = expect(purchases)
    stack = Stack(ROOT, _WORKERS, topologies=[each for each in load_topologies() if each.service in SERVICES])
    console = None
    courier = Courier()
    try:
        os.environ.update(courier.variables)  # for the runner
        _start(stack, begin)
        if stay:
            workers = {name: stack.urls(name) for name in SERVICES}
            console = ConsoleProcess(stack.logs / "console.log", stack.settings.environment(), workers)
            print(f"  watch it at {console.url}", flush=True)
        findings = asyncio.run(_tell(purchases, expected, stack, begin))
        parity = _parity(stack, begin)
        largest = max(expected.accounts, key=lambda customer: expected.accounts[customer])
        url = f"{stack.urls('accounts')[0]}/accounts/{largest}"
        print(
            f"\n{happened(findings)}\n\n$ curl {url}\n{httpx.get(url, trust_env=False).text}\n\n{parity.line}",
            flush=True,
        )
        also = [*findings.found.unequal, *courier.differences(expected.pickups), *parity.problems]
        verdict = judge(asdict(expected), asdict(findings.found.books), also)
        if stay:
            print(verdict.line)
            _stay(stack, largest)
        return verdict
    finally:
        ignore_signals()
        if console is not None:
            console.stop()
        stack.stop()
        courier.stop()


def _start(stack: Stack, begin: Begin) -> None:
    with begin("broker") as now:
        stack.start_brokers()
        now.done = f"Kafka on {stack.bootstrap}, {len(stack.provision())} topics created"
    with begin("workers") as now:
        stack.start_workers(lambda ready, total: now.progress(ready, total, "ready,"))
        stack.spawn_runners()
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
        return story.findings()


def _parity(stack: Stack, begin: Begin) -> spark.Checked:
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
