"""A next version of effects: its rows are folded, and nothing is called again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.catalog import table_in
from pipelines.rebuild import Rebuild
from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from shared.effects import Content, Target
from shared.effects.runner import Calls
from shared.http.client import AsyncClient, Client
from shared.http.effects import EffectView
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.topology.effect import RequestEffect
from tests.conftest import WORKER_SETTINGS
from tests.patterns.errands.service import SERVICE
from tests.pipelines.conftest import next_version
from tests.waiting import eventually

ERRAND = RequestEffect(target="partner", body="{}")


@dataclass(frozen=True)
class Journal(Target):
    calls: Counter[str] = field(default_factory=Counter)

    async def send(self, effect_id: str, content: Content) -> None:
        self.calls[effect_id] += 1


@pytest.fixture
def errands(tmp_path: Path) -> Iterator[Stack]:
    command = partial(faust_command, package="tests.patterns")
    with Stack(
        tmp_path, {"errands": 1}, settings=WORKER_SETTINGS, topologies=[SERVICE.topology], command=command
    ) as stack:
        yield stack


def request(url: str, *ids: str) -> None:
    with Client(url) as client:
        for each in ids:
            client.send(f"/errands/{each}", ERRAND)


def call_until_done(url: str, journal: Journal, count: int) -> None:
    def done() -> int:
        with Client(url) as client:
            return sum(len(page.items) for page in client.pages("/errands", EffectView, phase="done"))

    async def run() -> None:
        async with AsyncClient(url) as service:
            calls = asyncio.create_task(Calls(service, "/errands", journal).run())
            await asyncio.to_thread(eventually, done, count.__eq__)
            calls.cancel()

    asyncio.run(run())


@pytest.mark.long  # in short, what is done is never pending again: tests/unit/test_effect
def test_neither_a_rebuild_nor_the_next_version_calls_again(spark: Any, errands: Stack, tmp_path: Path) -> None:
    (worker,) = errands.workers
    journal, before = Journal("partner"), [f"e-{number}" for number in range(5)]
    request(worker.url, *before)
    call_until_done(worker.url, journal, len(before))
    request(worker.url, "open")
    worker.stop()

    build = Rebuild(
        spark, Brokers(errands.bootstrap), [table_in("tests.patterns.errands", "errands")], 2, tmp_path / "work"
    )
    provision([build.topology], errands.settings)
    assert build.run(lambda *_: None) == len(before) + 1
    worker.command = next_version("errands")
    worker.start()
    request(worker.url, *before)
    call_until_done(worker.url, journal, len(before) + 1)
    assert journal.calls == Counter([*before, "open"])
