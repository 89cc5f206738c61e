"""Sinks at work: what is in the database is what `rows` makes of the topics, whatever is killed, paused or restored."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from shared.dev.postgres import Postgres
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.privacy.persons import PersonKeys
from shared.privacy.sealing import Sealer
from shared.runtime.settings import Settings
from shared.sinks.database import Database, DatabaseUnavailable, Fenced, SinkState
from shared.sinks.filling import Filling
from shared.sinks.sink import Sink, Values
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.domain.commands import OpenAccount
from tests.accounts.domain.state import Open
from tests.accounts.sinks import SINKS, accounts_sink, charges_sink
from tests.accounts.topology import TOPOLOGY
from tests.sinks.outside import LEASE_S, Log, SinkProcess, expected, found, hash_of, row_of
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

_NUMBERS = count(1)
ACCOUNTS, CHARGES = SINKS


@pytest.fixture
def processes(tmp_path: Path, bootstrap: str, url: str) -> Iterator[list[SinkProcess]]:
    """Two of them, which are not started."""
    both = [SinkProcess(name, tmp_path, bootstrap, url) for name in ("one", "two")]
    yield both
    for each in both:
        each.kill()


def state(url: str, sink: Sink = ACCOUNTS) -> SinkState | None:
    """None while the database does not know it, or is away."""
    with closing(Database(url)) as database:
        try:
            return database.state(sink)
        except (Fenced, DatabaseUnavailable):
            return None


def owner(url: str, processes: Sequence[SinkProcess]) -> SinkProcess | None:
    known = state(url)
    return next((each for each in processes if known and known.lease.owner.startswith(f"{each.name}@")), None)


def moved(url: str, before: SinkState | None) -> bool:
    now = state(url)
    return now is not None and (before is None or now.positions != before.positions)


def assert_all_there(url: str, log: Log, sinks: Sequence[Sink] = SINKS, topology: Topology = TOPOLOGY) -> None:
    """In time, and to the last row."""
    for sink in sinks:
        wanted = expected(sink, topology, log.bootstrap)
        assert wanted
        eventually(partial(has, url, sink, wanted))


def has(url: str, sink: Sink, wanted: dict[Values, Values]) -> bool:
    return state(url, sink) is not None and found(sink, url) == wanted


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sqlite_gets_every_row_through_kills(url: str, log: Log, processes: list[SinkProcess]) -> None:
    one, two = processes
    log.write(3_000)
    one.start()
    eventually(lambda: moved(url, None))
    log.write(1_000, abort=True)
    log.write(3_000)
    one.kill()
    two.start()
    assert_all_there(url, log)
    two.child.terminate(signal.SIGTERM)
    two.child.wait(30)
    assert two.child.exit_code == 0
    assert (known := state(url)) is not None
    assert known.lease.owner == ""  # the next one need not wait


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.long)])
def test_postgres_gets_every_row_through_kills_of_both(
    kills: int, url: str, postgres: Postgres, log: Log, processes: list[SinkProcess]
) -> None:
    chance = random.Random(kills)
    for each in processes:
        each.start()
    for number in range(kills):
        before = eventually(lambda: state(url), deadline_s=60)
        log.write(chance.randrange(200, 4_000), abort=number % 5 == 4)
        log.write(100)
        if chance.random() < 0.5:
            eventually(partial(moved, url, before))
        if number % 2:
            postgres.kill()
            postgres.start()
        elif (present := owner(url, processes)) is not None:
            present.kill()
            present.start()
    assert_all_there(url, log)


@pytest.mark.long  # test_database shows the same without processes
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_process_that_was_paused_is_fenced(url: str, log: Log, processes: list[SinkProcess]) -> None:
    zombie, successor = processes
    log.write(2_000)
    zombie.start()
    eventually(lambda: owner(url, processes) is zombie and moved(url, None))
    zombie.child.send_signal(signal.SIGSTOP)
    log.write(2_000)
    successor.start()
    eventually(lambda: owner(url, processes) is successor)
    assert_all_there(url, log)
    zombie.child.send_signal(signal.SIGCONT)
    log.write(2_000)
    eventually(lambda: "a sink is left to another process" in zombie.said() or "a sink waits" in zombie.said())
    assert_all_there(url, log)
    assert owner(url, processes) is successor


@pytest.mark.long  # in short, test_database, without processes
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_database_from_an_older_backup_gets_what_it_misses(
    url: str, postgres: Postgres, log: Log, processes: list[SinkProcess]
) -> None:
    one, _ = processes
    one.start()
    log.write(1_000)
    assert_all_there(url, log)
    postgres.stop()
    postgres.back_up()
    postgres.start()
    log.write(1_000)
    assert_all_there(url, log)
    postgres.stop()
    postgres.restore()
    postgres.start()
    assert_all_there(url, log)
    assert one.child.exit_code is None  # it has never stopped


def own_topology(bootstrap: str) -> tuple[Topology, Table, Topic]:
    """Of topics that no other test writes."""
    name = f"own{next(_NUMBERS)}"
    commands, events = Topic(f"{name}.commands.v1"), Topic(f"{name}.events.v1")
    table = Table("accounts", source=commands)
    topology = Topology(name, (commands, events), (table,))
    provision([topology], Settings(bootstrap=bootstrap))
    return topology, table, events


def filled_until(good: Callable[[], object], *fillings: tuple[Filling, Sealer | None]) -> None:
    async def run() -> None:
        tasks = [asyncio.create_task(filling.run(sealer)) for filling, sealer in fillings]
        await asyncio.to_thread(eventually, good)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_sink_that_stands_stops_no_other_and_skips_nothing(url: str, bootstrap: str) -> None:
    topology, table, events = own_topology(bootstrap)
    log = Log(bootstrap, topology)
    log.write(100)
    bad = Brokers(bootstrap).settled_ends(events.name)[0]
    before = expected(charges_sink(events), topology, bootstrap)
    of_its_partition = {key: row for key, row in before.items() if hash_of(key[0]) % topology.partitions == 0}
    log.put(events.name, "account-0", None)
    log.write(100)
    accounts, charges = accounts_sink(table=table), charges_sink(events)
    with closing(Database(url)) as database:
        both = [Filling(sink, topology, database, bootstrap, "me", LEASE_S) for sink in (accounts, charges)]
        wanted = expected(accounts, topology, bootstrap)
        stands = partial(stands_at, url, charges, bad)
        filled_until(lambda: has(url, accounts, wanted) and stands(), *((each, None) for each in both))
    assert of_its_partition
    assert of_its_partition.items() <= found(charges, url).items()


def stands_at(url: str, sink: Sink, offset: int) -> bool:
    known = state(url, sink)
    return known is not None and known.positions[0] == offset


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_personal_text_stays_sealed_unless_the_sink_may_open_it(url: str, bootstrap: str, tmp_path: Path) -> None:
    topology, table, _ = own_topology(bootstrap)
    sealer = Sealer(PersonKeys(f"sqlite:///{tmp_path / 'keys.sqlite3'}"))
    asked = OpenAccount.model_validate({"holder": "Ann Example"})
    command = asyncio.run(sealer.sealed(asked, "accounts:ann"))
    changelog = topology.changelog(table).name
    Log(bootstrap, topology).put(changelog, "ann", row_of(Open(holder=command.holder), 1))
    sealed, opened = accounts_sink(table=table), accounts_sink(2, table=table, opens=True)
    with closing(Database(url)) as database:
        fillings = [
            (Filling(sink, topology, database, bootstrap, "me", LEASE_S), sealer if sink.opens else None)
            for sink in (sealed, opened)
        ]

        def both_there() -> bool:
            return all(state(url, sink) and found(sink, url) for sink in (sealed, opened))

        filled_until(both_there, *fillings)
    assert found(sealed, url) == {("ann",): ("ann", command.holder, 0, 1)}
    assert found(opened, url) == {("ann",): ("ann", "Ann Example", 0, 1)}
