"""A command waits for no commit but its own: the history and the views of its events come later, for many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any, cast

import pytest

from shared.engine import lagging as lagging_module
from shared.engine import pace as pace_module
from shared.engine.answers import Answers
from shared.engine.engine import Engine
from shared.engine.lagging import LAG_S
from shared.engine.membership import Assignment
from shared.engine.pace import POLL_RECORDS
from shared.engine.processors import AggregateProcessor, PolicyProcessor
from shared.engine.wiring import by_source, lagging, wired
from shared.runtime.positions import Place
from shared.topology.policy import Policy, Send
from shared.topology.topics import Table, Topology
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS
from tests.faults.load import command
from tests.faults.simulated import CLOCK, Broker, FakeOffsets, FakeProducer, FakeReader, FakeStore, membership

TOPOLOGY = Topology("accounts", (COMMANDS, EVENTS), (ACCOUNTS,), partitions=1, history=EVENTS)
AGGREGATE = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
A_FEW = 20


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lagging_module, "elapsed_s", CLOCK)
    monkeypatch.setattr(pace_module, "PAUSE", 0.0)
    CLOCK.now_s = 0.0
    yield
    CLOCK.now_s = 0.0


class Bank:
    """A worker that has just taken over the only partition of the accounts."""

    def __init__(self) -> None:
        self.broker = Broker([topic.name for topic in TOPOLOGY.all_topics()], 1, Random(0))
        self.broker.members.add("w")
        stores, nothing = {table.name: FakeStore(table.name) for table in TOPOLOGY.all_tables()}, cast(Any, None)
        producer, offsets = cast(Any, FakeProducer(self.broker, "w")), cast(Any, FakeOffsets(self.broker))
        self.engine = Engine(
            TOPOLOGY,
            wired(TOPOLOGY, [AGGREGATE]),
            cast(Any, stores),
            cast(Any, FakeReader(self.broker, Random(0))),
            nothing,
            producer,
            offsets,
            lambda: None,
            self.broker.sign,
            1.0,
            in_thread=_at_once,
        )

    async def begin(self) -> None:
        places = frozenset(place for place in self.broker.slots)
        self.engine.assignment = Assignment(places, frozenset(), membership(self.broker, "w"), 0, "w")
        await self.engine._begin()
        await self.turns()
        self.before = self.engine.holdings.commits

    @property
    def commits(self) -> int:
        return self.engine.holdings.commits - self.before

    @property
    def indexed(self) -> int:
        """How many events the history has."""
        return self.engine.holdings.position(cast(Table, TOPOLOGY.history_index), 0) + 1

    async def turns(self) -> None:
        for _ in range(A_FEW):
            await self.engine.step()
            await self.engine._settle()
            await asyncio.sleep(0)

    async def decide(self, number: int) -> None:
        """A command, until its caller has the answer."""
        answer = self.engine.holdings.answers.expect("a-1", f"c{number}", 0)
        kind, data = ("account.charge", {"amount_cents": 1}) if number else ("account.open", {})
        self.broker.append(COMMANDS.name, (b"a-1", command("a-1", f"c{number}", kind, data)), None)
        await self.turns()
        assert answer.done()


async def _at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


def with_bank(act: Callable[[Bank], Awaitable[None]]) -> None:
    async def run() -> None:
        bank = Bank()
        await bank.begin()
        await act(bank)

    asyncio.run(run())


def test_commands_one_after_another_are_one_commit_each_and_their_history_one_for_all() -> None:
    async def act(bank: Bank) -> None:
        for number in range(5):
            await bank.decide(number)
        assert bank.commits == 5
        CLOCK.now_s += LAG_S
        await bank.turns()
        assert (bank.commits, bank.indexed > 0) == (6, True)

    with_bank(act)


def test_a_reader_of_the_history_does_not_wait_for_the_lag_to_end() -> None:
    async def act(bank: Bank) -> None:
        async def read() -> None:
            while not bank.indexed:
                await bank.engine.holdings.answers.progress()

        await bank.decide(0)
        reader = asyncio.create_task(read())
        await bank.turns()
        assert (bank.commits, reader.done()) == (2, True)

    with_bank(act)


@pytest.mark.parametrize(("table", "commits"), [(TOPOLOGY.history_index, 2), (ACCOUNTS, 1)])
def test_only_who_waits_for_a_row_of_a_view_hastens_it(table: Table, commits: int) -> None:
    async def act(bank: Bank) -> None:
        with bank.engine.holdings.answers.watch(TOPOLOGY.changelog(table).name, b"a-1"):
            await bank.decide(0)
        assert bank.commits == commits

    with_bank(act)


def test_whoever_waits_for_rows_of_other_tables_makes_no_fetch_slower() -> None:
    class Asked(list[str]):
        times = 0

        def __contains__(self, item: object) -> bool:
            self.times += 1
            return super().__contains__(item)

    async def wait() -> None:
        answers, views = Answers(), Asked(["a-view", "another-view"])
        with ExitStack() as waiting:
            for number in range(1_000):
                waiting.enter_context(answers.watch("accounts", str(number).encode()))
            assert not answers.await_rows_of(views)
            assert views.times <= len(views)
            with answers.watch("a-view", b"a-1"), answers.watch("a-view", b"a-2"):
                assert (answers.await_rows_of(views), answers.for_rows) == (True, 1_002)
            assert not answers.await_rows_of(views)
        assert answers.for_rows == 0

    asyncio.run(wait())


def test_a_worker_that_tries_records_one_by_one_sets_none_aside() -> None:
    """Else a record that brokers refuse would never be alone, and its worker would never learn which one it is."""

    async def act(bank: Bank) -> None:
        bank.engine._pace.one_by_one()
        before = bank.engine.holdings.handled
        for _ in range(2):
            bank.broker.append(EVENTS.name, (b"a-1", b"an event"), None)
        for _ in range(10):
            if bank.commits:
                break
            await bank.engine.step()
            await bank.engine._settle()
        assert bank.engine.holdings.handled - before == 1

    with_bank(act)


def test_a_backlog_does_not_wait() -> None:
    async def act(bank: Bank) -> None:
        for _ in range(POLL_RECORDS + A_FEW):
            bank.broker.append(EVENTS.name, (b"a-2", b"an event"), None)
        handled = bank.engine.holdings.handled
        for _ in range(POLL_RECORDS):
            await bank.engine.step()
        await bank.engine._settle()
        assert bank.engine.holdings.handled - handled >= POLL_RECORDS

    with_bank(act)


def test_a_full_fetch_is_known_as_such_whatever_of_it_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker that catches up would commit a few commands at a time."""
    place = Place(EVENTS.name, 0)

    async def full(**_: int) -> dict[Place, list[int]]:
        return {place: [*range(POLL_RECORDS)]}

    async def act(bank: Bank) -> None:
        reading = bank.engine.reading
        monkeypatch.setattr(reading._reader, "getmany", full)
        assert not await reading.fetch(0, POLL_RECORDS + 1)
        assert (reading.sets_aside, reading.fetched) == (True, POLL_RECORDS)

    with_bank(act)


def test_events_that_a_policy_answers_do_not_lag() -> None:
    def views_of(*others: Any) -> frozenset[str]:
        return lagging(by_source(TOPOLOGY, [*wired(TOPOLOGY, [AGGREGATE]), *others]))

    def answer(_: object) -> list[Send]:
        return []

    policy = Policy(answer, source=EVENTS, events=(AccountOpened,), commands={})
    assert views_of() == {EVENTS.name}
    assert views_of(PolicyProcessor(policy)) == frozenset()
