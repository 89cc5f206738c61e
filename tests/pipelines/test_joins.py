"""Joined rows, made again of history: Spark's workers fold each view by itself, and that gives the engine's rows.

Only the tests with the fixture `spark` need it, and a broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from pipelines import joined
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import JoinedTable, joins_in, tables_in
from pipelines.folds import fold_batches
from pipelines.rebuild import Rebuild, _joining, _of_join
from pipelines.sources import RECORDS
from shared.engine.wiring import processors_of
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.kafka.spans import read_all
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.testing.conversation import Conversation, MemoryRecord
from shared.topology.topics import Topic
from tests.pipelines.larder.service import (
    EATEN,
    HARVESTED,
    HEAPS,
    JOIN,
    LEFT,
    MEALS,
    SERVICE,
    TOPOLOGY,
    Left,
    Sum,
    left,
    written,
)

PACKAGE = "tests.pipelines.larder"
(JOINED,) = joins_in(PACKAGE)

said = st.lists(
    st.tuples(st.sampled_from([HARVESTED, EATEN]), st.sampled_from(["oats", "rye", "corn"]), st.integers(0, 9)),
    max_size=12,
)  # 0 ends the row of its view
Said = Sequence[tuple[Topic, str, int]]
Columns = tuple[Any, ...]


def lived(history: Said, choose: Any) -> Conversation:
    """What the engine makes of it, in the chosen order."""
    talk = Conversation(processors_of(SERVICE))
    for number, (topic, crop, kilos) in enumerate(history):
        talk.say(topic, crop, written(topic, crop, number, kilos))
    talk.run(choose)
    return talk


def folded(log: Sequence[MemoryRecord], table: str, since: int = 0) -> dict[bytes, Columns]:
    """A view's STATES by key, with each state from the offset `since` on. All of memory is one partition."""
    records = as_batches(((0, each.offset, None, each.key, each.value) for each in log), RECORDS)
    states = fold_batches(PACKAGE, table, None, {0: since}, records)
    return {key: (sequence, state, later, problem) for _, key, sequence, _, state, later, problem in rows_of(states)}


def judged(talk: Conversation, rows: dict[str, bytes], since: int = 0) -> list[Columns]:
    """What the check says of rows: how many agree and differ, then the differences."""
    nothing = (None, None, None, None)
    heaps, meals = folded(talk.log[HARVESTED.name], "heaps", since), folded(talk.log[EATEN.name], "meals", since)
    of_key = [
        (0, key, rows.get(key.decode()), *heaps.get(key, nothing), *meals.get(key, nothing))
        for key in sorted({*heaps, *meals, *map(str.encode, rows)})
    ]
    return list(rows_of(joined.judge(PACKAGE, "left", [], batches(of_key))))


def batches(of_key: Sequence[Columns]) -> Iterator[pa.RecordBatch]:
    part = "sequence{0} long, state{0} binary, later{0} array<binary>, problem{0} string"
    return as_batches(of_key, f"partition int, key binary, row binary, {part.format(0)}, {part.format(1)}")


@given(said, st.randoms(use_true_random=False), st.integers(0, 12))
def test_whatever_order_the_engine_has_read_its_rows_agree(history: Said, random: Any, since: int) -> None:
    talk = lived(history, random.choice)
    rows = talk.rows(LEFT)
    counts, *differences = judged(talk, rows, since)
    assert counts[0] >= len(rows)  # a key whose rows have ended since agrees, too
    assert (counts[1], differences) == (0, [])


@given(said, said, st.randoms(use_true_random=False))
def test_rows_that_were_read_before_later_events_agree(before: Said, after: Said, random: Any) -> None:
    early, late = lived(before, random.choice), lived([*before, *after], random.choice)
    settled = min((len(early.log[topic.name]) for topic in (HARVESTED, EATEN)), default=0)
    (counts, *differences), rows = judged(late, early.rows(LEFT), settled), early.rows(LEFT)
    wrong = [each for each in differences if each[2].decode() in rows]
    assert wrong == [], counts


def test_of_a_view_that_ends_often_no_more_is_joined_than_shows_that_a_row_agrees() -> None:
    joins: list[Sum] = []

    def counted(heap: Sum, meal: Sum, crop: str) -> Left:
        joins.append(heap)
        return left(heap, meal, crop)

    table = replace(JOINED, join=replace(JOIN, join=counted))
    often: Said = [(HARVESTED, "rye", kilos if begins else 0) for kilos in range(1, 9) for begins in (True, False)]
    row = lived(often[:1], lambda turns: turns[0]).rows(LEFT)["rye"]
    heap = folded(lived(often, lambda turns: turns[0]).log[HARVESTED.name], "heaps", since=1)[b"rye"]
    assert joined.difference(table, b"rye", row, [joined.Part(*heap), joined.Part(None, None, None, None)]) is None
    assert len(joins) == 1


@given(said.filter(bool), st.randoms(use_true_random=False))
def test_rebuilt_rows_are_the_engines_byte_by_byte(history: Said, random: Any) -> None:
    talk = lived(history, random.choice)
    heaps, meals = talk.rows(HEAPS), talk.rows(MEALS)
    of_key = [(0, crop.encode(), heaps.get(crop), meals.get(crop)) for crop in sorted({*heaps, *meals})]
    given = as_batches(of_key, "partition int, key binary, row_0 binary, row_1 binary")
    made = rows_of(_of_join(PACKAGE, "left", lambda _: [], given))
    assert {key.decode(): row for _, key, row, _, problem in made if problem is None} == talk.rows(LEFT)


WRONG = [
    (b'"kilos":5', b'"kilos":6', "its state differs at sequence 2"),
    (b'"sequence":2,"state"', b'"sequence":3,"state"', "it is at sequence 3, its rows add up to 2"),
    (b'"heaps":[1,', b'"heaps":[0,', "it was made of heaps at sequence 0, whose events had gone on to 1"),
    (b'"meals":[1,', b'"meals":[2,', "it was made of meals at sequence 2, whose events end at 1"),
    (b'"kilos":5', b'"kilos":null', "its row can't be read: "),
]


@pytest.mark.parametrize(("there", "instead", "why"), WRONG, ids=[why for *_, why in WRONG])
def test_a_row_that_is_no_join_of_its_views_is_told_with_the_reason(there: bytes, instead: bytes, why: str) -> None:
    talk = lived([(HARVESTED, "rye", 9), (EATEN, "rye", 4)], lambda turns: turns[0])
    row = talk.rows(LEFT)["rye"]
    assert there in row
    _, (_, _, key, told, *_) = judged(talk, {"rye": row.replace(there, instead)}, since=9)
    assert (key, told[: len(why)]) == (b"rye", why)


def test_a_joined_row_is_compared_with_what_was_left_when_it_was_made() -> None:
    """Of a view that it does not name, with no row; a row of that sequence may have ended since, and begun again."""
    before = [(HARVESTED, "rye", 9), (EATEN, "rye", 4), (HARVESTED, "rye", 0)]
    row = lived(before, lambda turns: turns[0]).rows(LEFT)["rye"]
    after = lived([*before, (HARVESTED, "rye", 5), (EATEN, "rye", 0), (EATEN, "rye", 2)], lambda turns: turns[0])
    assert judged(after, {"rye": row}, since=1) == [(1, 0, None, None, None, None)]
    other = row.replace(b'"kilos":-4', b'"kilos":-2')
    _, (_, _, key, why, *_) = judged(after, {"rye": other}, since=1)
    assert (key, why) == (b"rye", "its state differs at sequence 1")


def test_a_row_that_should_have_ended_is_told() -> None:
    talk = lived([(HARVESTED, "rye", 9)], lambda turns: turns[0])
    row = talk.rows(LEFT)["rye"]
    gone = lived([(HARVESTED, "rye", 9), (HARVESTED, "rye", 0)], lambda turns: turns[0])
    _, (_, _, key, why, *_) = judged(gone, {"rye": row}, since=9)
    assert (key, why) == (b"rye", "it was made of heaps at sequence 1, whose events end at 0")
    assert judged(gone, {}, since=9) == [(0, 0, None, None, None, None)]
    assert judged(gone, {}, since=1) == [(1, 0, None, None, None, None)]


def test_a_missing_row_and_an_event_that_can_not_be_folded_are_told() -> None:
    talk = lived([(HARVESTED, "rye", 9), (EATEN, "rye", 4)], lambda turns: turns[0])
    _, (*_, missing, live, _) = judged(talk, {}, since=9)
    assert (missing, live) == ("no row, but 2 events", "no row")
    talk.log[EATEN.name].append(MemoryRecord(EATEN.name, b"rye", b"noise", 1))
    _, (_, _, _, broken, *_) = judged(talk, talk.rows(LEFT), since=9)
    assert broken.startswith("events of meals cannot be folded: at offset 1: ")


def test_a_join_that_fails_is_a_problem_of_its_key_when_rows_are_rebuilt() -> None:
    failing = replace(JOINED, join=replace(JOINED.join, join=lambda *_: 1 // 0))
    heap = lived([(HARVESTED, "rye", 9)], lambda turns: turns[0]).rows(HEAPS)["rye"]
    assert _joining(failing, b"rye", [heap, None]) == (
        None,
        0,
        "its rows cannot be joined: ZeroDivisionError: integer division or modulo by zero",
    )


class Larder:
    """The service over topics of the broker; the tests write what its engine would write."""

    def __init__(self, spark: Any, bootstrap: str, prefix: str) -> None:
        self._spark = spark
        self._settings = Settings(bootstrap=bootstrap)
        self._producer = Producer(producer_config(bootstrap) | {"log_level": 0})
        self.brokers = Brokers(bootstrap)
        renamed = {topic: Topic(f"{prefix}{topic.name}") for topic in (HARVESTED, EATEN)}
        topics = tuple(renamed.values())
        self.topology = replace(TOPOLOGY, service=f"{prefix}larder")
        self.parts = [
            replace(
                each,
                topology=self.topology,
                table=replace(each.table, source=renamed[each.events]),
                events=renamed[each.events],
            )
            for each in tables_in(PACKAGE)
        ]
        owned = replace(self.topology, service=prefix, topics=topics, tables=())
        provision([owned, self.topology], self._settings)

    @property
    def table(self) -> JoinedTable:
        return replace(JOINED, topology=self.topology, parts=tuple(self.parts))

    def put(self, topic: str, key: str, value: bytes) -> None:
        self._producer.produce(topic, value, key.encode(), partition_of(key.encode(), TOPOLOGY.partitions))
        assert self._producer.flush(30) == 0

    def live(self, history: Said) -> dict[str, bytes]:
        """Writes the events, and the rows that the engine makes of them; returns the joined ones."""
        talk = lived(history, lambda turns: turns[-1])
        for declared, part in zip(tables_in(PACKAGE), self.parts, strict=True):
            for record in talk.log[declared.events.name]:
                self.put(part.events.name, record.key.decode(), record.value)
        for table in TOPOLOGY.tables:
            for crop, row in talk.rows(table).items():
                self.put(self.topology.changelog(table).name, crop, row)
        for part in self.parts:
            ends = self.brokers.settled_ends(part.events.name)
            self.brokers.commit(self.topology.group, {part.events.name: ends})
        return talk.rows(LEFT)

    def check(self, **served: Any) -> str:
        return str(joined.check(self._spark, self.brokers, self.table, lambda _: None, **served))


HISTORY = [(HARVESTED, "rye", 9), (EATEN, "rye", 4), (HARVESTED, "oats", 5), (EATEN, "corn", 1), (HARVESTED, "rye", 1)]


def test_the_live_rows_are_checked_and_a_wrong_one_is_found(spark: Any, bootstrap: str) -> None:
    larder = Larder(spark, bootstrap, "checked-")
    rows = larder.live(HISTORY)
    assert larder.check() == "3 of 3 left agree"
    larder.put(larder.table.changelog, "rye", rows["rye"].replace(b'"kilos":6', b'"kilos":7'))
    told = larder.check()
    assert told.startswith("2 of 3 left agree\n  rye: its state differs at sequence 3")
    assert "they part in the join of heaps, meals" in told


def test_a_wrong_answer_over_http_is_found_and_one_of_a_row_that_came_meanwhile_is_none(
    spark: Any, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    larder = Larder(spark, bootstrap, "served-")
    rows = larder.live(HISTORY)
    shown = {crop: from_json(row)["state"] | {"crop": crop} for crop, row in rows.items()}
    shown["rye"]["kilos"] += 1

    def answer(request: httpx.Request) -> httpx.Response:
        crop, query = request.url.path.removeprefix("/left").strip("/"), request.url.params
        if not crop:
            found = [each for each in shown.values() if str(each["kilos"]) == query["kilos_min"] == query["kilos_max"]]
            return httpx.Response(200, json={"items": found, "cursor": None})
        if shown["corn"]["kilos"] == -1:
            shown["corn"]["kilos"] = -3
            larder.put(larder.table.changelog, "corn", rows["corn"].replace(b'"kilos":-1', b'"kilos":-3'))
        return httpx.Response(200, json=shown[crop])

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    told = larder.check(url="http://worker", path="/left/{crop}")
    why = "rye: HTTP answers another kilos at sequence 3"
    assert told.startswith(f"2 of 3 left agree (3 also over HTTP, 3 listed)\n  {why}\n")
    assert told.endswith("they part between HTTP and the changelog")


@pytest.mark.long  # in short, what has ended, in the next version
def test_the_next_version_has_the_same_joined_rows(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    larder = Larder(spark, bootstrap, "rebuilt-")
    rows = larder.live(HISTORY)
    build = Rebuild(spark, larder.brokers, larder.parts, 2, tmp_path)
    provision([build.topology], Settings(bootstrap=bootstrap))
    assert build.run(lambda *_: None) == 2 + 2 + 3
    changelog = build.topology.changelog(LEFT).name
    states = {
        (key or b"").decode(): JOINED.row_codec.decode(row or b"")
        for _, key, row in read_all(larder.brokers, changelog)
    }
    live = {crop: JOINED.row_codec.decode(row) for crop, row in rows.items()}
    assert {crop: (row.sequence, row.state) for crop, row in states.items()} == {
        crop: (row.sequence, row.state) for crop, row in live.items()
    }
    larder.topology = build.topology
    larder.parts = [replace(each, topology=build.topology) for each in larder.parts]
    assert larder.check() == "3 of 3 left agree"


@pytest.mark.long  # in short, what expires, in test_ending
def test_what_has_ended_is_neither_missed_nor_rebuilt(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    larder = Larder(spark, bootstrap, "ended-")
    rows = larder.live([*HISTORY, (HARVESTED, "oats", 0), (HARVESTED, "rye", 0)])
    assert rows.keys() == {"rye", "corn"}
    assert larder.check() == "2 of 2 left agree"
    build = Rebuild(spark, larder.brokers, larder.parts, 2, tmp_path)
    provision([build.topology], Settings(bootstrap=bootstrap))
    assert build.run(lambda *_: None) == 0 + 2 + 2
    larder.topology = build.topology
    larder.parts = [replace(each, topology=build.topology) for each in larder.parts]
    assert larder.check() == "2 of 2 left agree"
