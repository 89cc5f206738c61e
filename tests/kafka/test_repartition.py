"""What `repartition` refuses, with what has to be done first, and what it keeps of each record."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from threading import Event as Signal
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from shared.dev.repartition import repartition
from shared.domain import Event
from shared.domain.errors import OnefoldError
from shared.domain.history_index import ended_key
from shared.domain.row import Row
from shared.kafka.access import client_config
from shared.kafka.alone import NotAlone
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.kafka.spans import Span, WholeRecord, read_all, read_whole
from shared.operations.provision import own_settings, provision
from shared.operations.repartition import Repartition
from shared.parking.parked import PARKED_CODEC, Parked
from shared.parking.requests import noted_begins
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology import Projection, Rekey, Service, Table, Timer, Topic, Topology
from shared.topology.topics import DELETIONS_KEPT_S, PARTITIONS_MAX
from tests.engine.baskets import baskets, tales_of

pytestmark = pytest.mark.broker

OLD, NEW = 2, 5
DEADLINE_S = 60.0
_NUMBERS = count()


class Seen(Event):
    TYPE = "bird.seen"


class Sightings:
    """A service whose events are copied to all partitions, and of which it has views. Its workers don't run: where they
    would stand is said by `stands`."""

    def __init__(self, bootstrap: str) -> None:
        name = f"sightings-{next(_NUMBERS)}"
        self.settings = Settings(bootstrap=bootstrap)
        self.events, self.timers = (Topic(f"{name}.{kind}.v1") for kind in ("events", "timers"))
        self.names = Topic(f"{name}.names.v1", "compact")
        alarms = Topic(f"{name}.alarms.v1")
        birds, names = Table("birds", source=self.events), Table.reference("names", self.names)
        views = [
            Projection(table, lambda view, _event, _key: view, initial=0, events=(Seen,), state=int)
            for table in (birds, names)
        ]
        self.service = Service(
            Topology(name, (self.events, self.names, self.timers, alarms), (birds, names), partitions=OLD),
            timers=[Timer(source=self.timers, target=alarms, delay_s=60)],
            rekeys=[Rekey(everywhere=[self.names], source=self.events, events=(Seen,))],
            projections=views,
        )
        self.brokers = Brokers(bootstrap)
        provision([self.service.topology], self.settings)
        self._producer = Producer(producer_config(bootstrap))
        self.stands()

    def write(self, topic: Topic, key: bytes, value: bytes | None, number: int) -> None:
        self._producer.produce(topic.name, value, key, number, headers=[("for", key)])

    def stands(self) -> None:
        """All that was written by now is handled."""
        assert self._producer.flush(30) == 0
        read = {topic.name: self.brokers.settled_ends(topic.name) for topic in (self.events, self.names)}
        self.brokers.commit(self.service.topology.group, read)

    def to(self, partitions: int, *, dry_run: bool = False, ahead: bool = False) -> None:
        assert self._producer.flush(30) == 0
        repartition([self.service], self.settings, partitions, dry_run, ahead)

    def records(self, topic: Topic) -> list[list[WholeRecord]]:
        """By partition."""
        client, ends = client_config(self.settings.bootstrap), self.brokers.settled_ends(topic.name)
        return [
            [*read_whole(client, Span(Place(topic.name, number), 0, end))] if end else []
            for number, end in sorted(ends.items())
        ]


@pytest.fixture
def sightings(bootstrap: str) -> Sightings:
    return Sightings(bootstrap)


@pytest.mark.parametrize(
    ("partitions", "why"),
    [
        (OLD - 1, "1 is fewer than 2; fix: name a number above"),
        (OLD, "all topics have 2 partitions; fix: nothing"),
        (PARTITIONS_MAX + 1, "501 partitions are too many; fix: at most 500"),
    ],
)
def test_a_number_that_is_none_is_refused(sightings: Sightings, partitions: int, why: str) -> None:
    with pytest.raises(OnefoldError, match=why):
        sightings.to(partitions)


def test_a_record_that_nobody_has_handled_is_named(sightings: Sightings) -> None:
    sightings.stands()
    sightings.write(sightings.events, b"wren", b"1", 1)
    name = sightings.service.topology.service
    with pytest.raises(OnefoldError, match=f"{name} has 1 records of {sightings.events.name} still to handle; fix: st"):
        sightings.to(NEW)


def test_a_parked_record_is_named(sightings: Sightings) -> None:
    topology, bird = sightings.service.topology, b"birds/1/wren"
    parked = Parked(
        processor="birds", topic=sightings.events.name, partition=1, offset=7, code="c", reason="r", attempts=1
    )
    sightings.write(topology.changelog(topology.parked), bird, PARKED_CODEC.encode(Row(1, parked, {}, 0)), 1)
    with pytest.raises(OnefoldError, match=f"1 keys parked in birds, the first by {sightings.events.name}/1 at 7; fix"):
        sightings.to(NEW)


def test_a_view_whose_first_records_are_gone_is_not_emptied(sightings: Sightings) -> None:
    sightings.write(sightings.events, b"wren", b"1", 1)
    sightings.stands()
    admin = AdminClient(client_config(sightings.settings.bootstrap))
    for gone in admin.delete_records([TopicPartition(sightings.events.name, 1, 1)]).values():
        gone.result()
    with pytest.raises(OnefoldError, match=f"{sightings.events.name}/1 begins at offset 1"):
        sightings.to(NEW)


def test_a_topic_of_a_service_that_is_not_here_is_named(sightings: Sightings) -> None:
    others = Topic("others.events.v1")
    sightings.service = replace(
        sightings.service,
        rekeys=[*sightings.service.rekeys, Rekey({}, source=others, events=(Seen,))],
    )
    with pytest.raises(OnefoldError, match=f"reads {others.name}, which no service of this checkout declares"):
        sightings.to(NEW)


def test_each_record_is_where_its_key_belongs_as_it_was_and_in_the_order_of_time(sightings: Sightings) -> None:
    topology, events = sightings.service.topology, sightings.events
    birds = [f"bird-{number}".encode() for number in range(12)]
    admin = AdminClient(client_config(sightings.settings.bootstrap))
    for turn in range(3):
        for bird in birds:
            number = partition_of(bird, OLD)
            sightings.write(events, bird, None if turn == 1 else b"%d" % turn, number)
            for each in range(OLD):
                sightings.write(sightings.names, bird, b"%d" % turn, each)
    sightings.stands()
    before = [each for some in sightings.records(events) for each in some]
    settings = own_settings([events.name], sightings.settings.bootstrap)
    sightings.to(NEW, dry_run=True)
    assert sightings.brokers.partitions(events.name) == OLD
    sightings.to(NEW)
    after = sightings.records(events)
    assert own_settings([events.name], sightings.settings.bootstrap) == settings
    assert sorted(repr(each[1:]) for some in after for each in some) == sorted(repr(each[1:]) for each in before)
    for number, records in enumerate(after):
        assert {partition_of(each.key or b"", NEW) for each in records} <= {number}
        assert [each.timestamp for each in records] == sorted(each.timestamp for each in records)
        assert [each.offset for each in records] == [*range(len(records))]
    for bird in birds:
        values = [each.value for each in after[partition_of(bird, NEW)] if each.key == bird]
        assert values == [b"0", None, b"2"]
    copies = sightings.records(sightings.names)
    assert [len(records) for records in copies] == [3 * len(birds)] * NEW, "each has all"
    starts = dict.fromkeys(range(NEW), 0)
    assert sightings.brokers.positions(topology.group) == {events.name: starts, sightings.names.name: starts}
    begins = noted_begins(sightings.brokers, replace(topology, partitions=NEW))
    assert {number: noted[events.name][f"rekey.{events.name}"] for number, noted in begins.items()} == {
        number: len(records) for number, records in enumerate(after)
    }
    assert not [name for name in admin.list_topics(timeout=10).topics if name.endswith(".staged")]


def test_a_timer_that_waits_goes_on_waiting_behind_those_that_were_passed_on(sightings: Sightings) -> None:
    group, timers = sightings.service.topology.group, sightings.timers
    birds = [f"bird-{number}".encode() for number in range(12)]
    for value in (b"rung", b"waits"):
        for bird in birds:
            sightings.write(timers, bird, value, partition_of(bird, OLD))
        if value == b"rung":
            sightings.stands()
            rung = sightings.brokers.settled_ends(timers.name)
    sightings.brokers.commit(group, {timers.name: rung})
    sightings.to(NEW)
    positions = sightings.brokers.positions(group)[timers.name]
    for number, records in enumerate(sightings.records(timers)):
        rings, waits = records[: positions[number]], records[positions[number] :]
        assert [each.value for each in (*rings, *waits)] == [b"rung"] * len(rings) + [b"waits"] * len(waits)
        assert {each.key for each in rings} == {each.key for each in waits}


def test_what_came_after_a_copy_made_ahead_is_behind_it_and_a_copy_that_others_wrote_to_is_made_again(
    sightings: Sightings, capsys: pytest.CaptureFixture[str]
) -> None:
    events, names, birds = sightings.events, sightings.names, [f"bird-{number}".encode() for number in range(12)]

    def write(value: bytes) -> None:
        for bird in birds:
            sightings.write(events, bird, value, partition_of(bird, OLD))
            for number in range(OLD):
                sightings.write(names, bird, value, number)

    write(b"0")
    sightings.to(NEW + 1, ahead=True)  # another number can still be chosen
    sightings.to(NEW, ahead=True)  # although nobody has handled these
    write(b"1")
    sightings.to(NEW, ahead=True)
    assert sightings.brokers.partitions(events.name) == OLD
    write(b"2")
    sightings.write(Topic(f"{names.name}.staged"), b"wren", b"of others", NEW - 1)
    with pytest.raises(OnefoldError, match="still to handle"):
        sightings.to(NEW)
    sightings.stands()
    capsys.readouterr()
    sightings.to(NEW)
    assert f"{events.name}: {OLD} → {NEW} partitions; 36 offsets are copied, 12 of them are not yet" in (
        capsys.readouterr().out
    )
    found = sightings.records(events)
    for bird in birds:
        values = [each.value for each in found[partition_of(bird, NEW)] if each.key == bird]
        assert values == [b"0", b"1", b"2"]
    assert sum(map(len, found)) == 3 * len(birds)
    for records in sightings.records(names):
        assert Counter(each.key for each in records) == dict.fromkeys(birds, 3), "each has all"


def test_a_deletion_that_may_be_gone_before_it_is_copied_makes_the_copy_anew(
    sightings: Sightings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, events, names = time.time, sightings.events.name, sightings.names.name

    def write(value: bytes | None) -> None:
        sightings.write(sightings.events, b"wren", b"seen", partition_of(b"wren", OLD))
        for number in range(OLD):
            sightings.write(sightings.names, b"wren", value, number)

    def told_left() -> tuple[str, str]:
        capsys.readouterr()
        sightings.to(NEW, dry_run=True)
        lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("topic ")]
        left = {name.rstrip(":"): more.rpartition(", ")[2] for _, name, more in lines}
        return left[events], left[names]

    write(b"Wren")
    with monkeypatch.context() as yesterday:
        yesterday.setattr(time, "time", lambda: now() - DELETIONS_KEPT_S)
        sightings.to(NEW, ahead=True)
    write(None)
    sightings.stands()
    assert told_left() == ("1 of them are not yet", "twice")
    sightings.to(NEW, ahead=True)
    write(b"Jenny Wren")
    sightings.stands()
    assert told_left() == ("1 of them are not yet", "2 of them are not yet")
    sightings.to(NEW)
    for records in sightings.records(sightings.names):
        assert [each.value for each in records] == [b"Wren", None, b"Jenny Wren"]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_aggregate_whose_end_brokers_have_forgotten_is_deleted_where_its_key_belongs(
    bootstrap: str, ahead: bool
) -> None:
    name, settings = f"ended-{next(_NUMBERS)}", Settings(bootstrap=bootstrap)
    services, brokers = [baskets(name, OLD), tales_of(name, OLD)], Brokers(bootstrap)
    topology = services[0].topology
    provision([each.topology for each in services], settings)
    producer = Producer(producer_config(bootstrap))
    assert topology.history_index is not None  # it keeps what the table's own topic has lost
    ended = topology.changelog(topology.history_index).name
    producer.produce(ended, b"{}", ended_key("wren"), partition_of(b"wren", OLD))
    assert producer.flush(30) == 0
    if ahead:
        repartition(services, settings, NEW, dry_run=False, ahead=True)
    repartition(services, settings, NEW, dry_run=False)
    rows = topology.changelog(topology.tables[0]).name
    assert [*read_all(brokers, rows)] == [(partition_of(b"wren", NEW), b"wren", None)]


def test_a_second_one_changes_nothing_while_the_first_is_under_way(
    sightings: Sightings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sightings.write(sightings.events, b"wren", b"1", partition_of(b"wren", OLD))
    sightings.stands()
    begun, refused, stage = Signal(), Signal(), Repartition._stage

    def slowly(self: Repartition, *given: Any) -> None:
        begun.set()
        assert refused.wait(DEADLINE_S)
        stage(self, *given)

    monkeypatch.setattr(Repartition, "_stage", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(sightings.to, NEW)
        assert begun.wait(DEADLINE_S)
        try:
            with pytest.raises(NotAlone, match="another `repartition` is under way; fix: let it end"):
                sightings.to(NEW)
        finally:
            refused.set()
        first.result()
    assert [each.value for records in sightings.records(sightings.events) for each in records] == [b"1"]
    assert sightings.brokers.partitions(sightings.events.name) == NEW


def test_what_is_written_behind_the_copies_of_one_that_was_killed_is_not_lost(
    sightings: Sightings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sightings.write(sightings.events, b"wren", b"1", partition_of(b"wren", OLD))
    sightings.stands()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Repartition, "_replace", dies)
        with pytest.raises(KeyboardInterrupt):
            sightings.to(NEW)
    sightings.write(sightings.events, b"wren", b"2", partition_of(b"wren", OLD))
    with pytest.raises(OnefoldError, match=f"{sightings.events.name} was written after it was copied"):
        sightings.to(NEW)
    assert sightings.brokers.partitions(sightings.events.name) == OLD
