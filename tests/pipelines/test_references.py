"""Rows that show those of a reference table, made again of history: Spark's workers come to the engine's.

Only the test with the fixture `spark` needs it, and a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from pipelines import consistency, joined
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import joins_in, tables_in
from pipelines.folds import fold_batches
from pipelines.joined import Part
from pipelines.rebuild import Rebuild, _of_join
from pipelines.sources import RECORDS
from shared.engine.wiring import processors_of
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from shared.kafka.spans import read_all
from shared.operations.provision import provision
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.testing.conversation import Conversation
from shared.testing.node import MemoryNode
from shared.topology.topics import Topic
from tests.pipelines.boards.service import (
    AIRPORTS,
    BOARD,
    COPIES,
    JOIN,
    PLANNED,
    ROUTES,
    SERVICE,
    TOPOLOGY,
    name,
    plan,
)

PACKAGE = "tests.pipelines.boards"
CODES = ("ams", "ber", "cph")
planned = st.builds(plan, st.sampled_from("pqrs"), st.sampled_from([*CODES, ""]), st.sampled_from([*CODES, None]))
named = st.builds(name, st.sampled_from(CODES), st.sampled_from(["", "North", "South"]))
said = st.lists(st.one_of(planned, named), max_size=14)
Said = Sequence[tuple[Topic, str, bytes]]


def lived(history: Said, choose: Any) -> Conversation:
    talk = Conversation(processors_of(SERVICE))
    for topic, key, value in history:
        talk.say(topic, key, value)
    talk.run(choose)
    return talk


def folded(talk: Conversation, topic: Topic, table: str, since: int) -> dict[bytes, Part]:
    """All of memory is one partition."""
    records = as_batches(((0, each.offset, None, each.key, each.value) for each in talk.log[topic.name]), RECORDS)
    states = fold_batches(PACKAGE, table, None, {0: since}, records)
    return {row[1]: Part(row[2], row[4], row[5], row[6]) for row in rows_of(states)}


def judged(talk: Conversation, rows: Mapping[str, bytes], since: int = 0) -> list[Any]:
    routes = folded(talk, PLANNED, ROUTES.name, since)
    airports = {0: folded(talk, COPIES, AIRPORTS.name, since)}
    of_key = [
        (0, key, rows.get(key.decode()), *routes.get(key, joined._NOTHING)) for key in {*routes, *map(str.encode, rows)}
    ]
    columns = "partition int, key binary, row binary, sequence long, state binary, later array<binary>, problem string"
    return list(rows_of(joined.judge(PACKAGE, BOARD.name, [airports, airports], as_batches(of_key, columns))))


@given(said, st.randoms(use_true_random=False), st.integers(0, 12))
def test_whatever_order_the_engine_has_read_its_rows_agree(history: Said, random: Any, since: int) -> None:
    talk = lived(history, random.choice)
    counts, *differences = judged(talk, talk.rows(BOARD), since)
    assert (counts[1], differences) == (0, [])


@given(said, st.randoms(use_true_random=False))
def test_rebuilt_rows_are_the_engines_byte_by_byte(history: Said, random: Any) -> None:
    talk = lived(history, random.choice)
    airports = {key.encode(): row for key, row in talk.rows(AIRPORTS).items()}
    of_key = [(0, key.encode(), row) for key, row in talk.rows(ROUTES).items()]
    rows = as_batches(of_key, "partition int, key binary, row_0 binary")
    made = rows_of(_of_join(PACKAGE, BOARD.name, lambda _: [airports, airports], rows))
    assert {key.decode(): row for _, key, row, _, problem in made if problem is None} == talk.rows(BOARD)


def test_a_row_that_shows_a_reference_as_it_was_before_is_told() -> None:
    history = [plan("f-1", "ams", "ber"), name("ber", "Spree")]
    old = lived(history, lambda turns: turns[0]).rows(BOARD)
    talk = lived([*history, name("ber", "Havel")], lambda turns: turns[0])
    assert judged(talk, old, since=1) == [(1, 0, None, None, None, None)]
    _, (_, _, key, why, *_) = judged(talk, old, since=2)
    assert (key, why) == (b"f-1", "it was made of airports:target at sequence 1, whose events had gone on to 2")
    wrong = {"f-1": talk.rows(BOARD)["f-1"].replace(b"Havel", b"Elbe")}
    _, (_, _, _, why, _, shown) = judged(talk, wrong, since=2)
    assert (why, from_json(shown)["going_to"]) == ("its state differs at sequence 1", "Havel 2")


HISTORY = [
    *(plan(f"f-{number}", "ams", CODES[number % 3]) for number in range(7)),
    *(name(code, "North") for code in CODES),
    plan("f-1", ""),
    name("ams", "South"),
    name("cph", ""),
]


@pytest.mark.long  # in short, the same folds without brokers, above
def test_spark_finds_the_rows_of_each_partition_and_makes_the_same_again(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE))
    for topic, key, value in HISTORY:
        asyncio.run(node.append(topic, key.encode(), value))
    renamed = {topic: Topic(f"shown-{topic.name}") for topic in (PLANNED, COPIES)}
    topology = replace(TOPOLOGY, service="shown-flights", topics=())
    parts = [
        replace(
            each, topology=topology, table=replace(each.table, source=renamed[each.events]), events=renamed[each.events]
        )
        for each in tables_in(PACKAGE)
    ]
    owned = replace(topology, service="shown", topics=tuple(renamed.values()), tables=())
    provision([owned, topology], Settings(bootstrap=bootstrap))
    producer, brokers = Producer(producer_config(bootstrap) | {"log_level": 0}), Brokers(bootstrap)
    for number in range(TOPOLOGY.partitions):
        for topic, copy in renamed.items():
            for value in node.logs[Place(topic.name, number)]:
                producer.produce(copy.name, value, from_json(value)["aggregate_id"].encode(), number)
        for table in TOPOLOGY.tables:
            for row_key in node.keys(table, number):
                row = node._rows[table.name][number][row_key]
                producer.produce(topology.changelog(table).name, row, row_key, number)
    assert producer.flush(30) == 0
    brokers.commit(topology.group, {copy.name: brokers.settled_ends(copy.name) for copy in renamed.values()})
    (board,) = joins_in(PACKAGE)
    routes, airports = parts
    board = replace(board, topology=topology, parts=(routes,), references=(airports, airports))
    assert str(joined.check(spark, brokers, board, lambda _: None)) == "6 of 6 board agree"
    assert str(consistency.check(spark, brokers, airports)) == "6 of 6 airports agree"  # two, in each partition
    build = Rebuild(spark, brokers, parts, 2, tmp_path)
    provision([build.topology], Settings(bootstrap=bootstrap))
    assert build.run(lambda *_: None) == 6 + 6 + 6
    made = {
        (number, key): JOIN.row_codec.decode(row or b"").state
        for number, key, row in read_all(brokers, build.topology.changelog(BOARD).name)
    }
    assert made == {
        (number, key): JOIN.row_codec.decode(row).state
        for number, rows in node._rows[BOARD.name].items()
        for key, row in rows.items()
    }
