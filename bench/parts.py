"""Where the time goes: the CPU that each part of handling one event or command takes, in this process alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.begin import Begin
from bench.domain import DECIDER, EVENT_CODEC, Sales, project
from bench.lab import Input, Lab
from bench.report import Report, Result
from bench.speed import Load
from bench.topology import PARTITIONS
from shared.domain.outcomes import OUTCOME_CODEC, row_of
from shared.domain.row import Codec, Row, RowCodec
from shared.domain.step import step
from shared.kafka.reader import Reader, ReadRecord
from shared.kafka.transactions import Record, TransactionalProducer, group_metadata
from shared.runtime.positions import Place
from shared.tables.rows import ENCODED_AT_ONCE
from shared.tables.store import RowStore
from shared.topology.topics import Topic, Topology

MOST = 50_000  # records to measure
REPEATS = 5
ROWS_A_WRITE = 2_500  # rows of one partition in a full batch where each key has its own row
TOPIC = Topic("parts.events.v1")


def parts(lab: Lab, begin: Begin, load: Load) -> Report:
    """Microseconds of CPU for each record or row; the best of some repeats, because noise only adds to it."""
    events = lab.events(begin, load.events, load.keys)
    commands = lab.commands(begin, load.events, load.keys)
    with begin("parts"):
        read_us, sold = min((asyncio.run(_read(lab, events)) for _ in range(REPEATS)), key=lambda found: found[0])
        _, sell = asyncio.run(_read(lab, commands))
        decoded = [EVENT_CODEC.decode(record.value) for record in sold]
        ordered = [DECIDER.command_codec.decode(record.value) for record in sell]
        view, rows = Sales(count=1, sum_cents=1), RowCodec[Sales](Sales)
        row = Row(1, view, {}, 1)
        outcome = row_of(step(DECIDER, DECIDER.initial_row, ordered[0], 1).outcome, sell[0].timestamp, 1)
        encoded, kept = rows.encode(row), OUTCOME_CODEC.encode(outcome)
        found = {
            "read": read_us,
            "decode_event": _each(lambda record: EVENT_CODEC.decode(record.value), sold),
            "project": _each(lambda event: project(view, event, "customer"), decoded),
            **_stored(lab, [b"customer-%d" % number for number in range(len(sold))], encoded),
            "decode_row": _each(rows.decode_whole, [encoded] * len(sold)),
            "encode_row": _encoding(rows, row),
            "decode_outcome": _each(OUTCOME_CODEC.decode_whole, [kept] * len(sold)),
            "encode_outcome": _encoding(OUTCOME_CODEC, outcome),
            "decode_command": _each(lambda record: DECIDER.command_codec.decode(record.value), sell),
            "decide_and_evolve": _each(lambda command: step(DECIDER, DECIDER.initial_row, command, 1), ordered),
        }
    return Report([Result(f"part_{name}", {"cpu_us": round(cpu_us, 2)}) for name, cpu_us in found.items()])


def _encoding(rows: Codec[Any], row: object) -> float:
    some = [row] * ENCODED_AT_ONCE
    return _each(rows.encode_checked, [some] * (MOST // len(some))) / len(some)


def _stored(lab: Lab, keys: Sequence[bytes], row: bytes) -> dict[str, float]:
    """What RocksDB and librdkafka cost the thread that Python runs in."""
    store = RowStore(lab.root / "parts", "sales")
    store.open(0, "changelog-id")
    slices = [dict.fromkeys(keys[at : at + ROWS_A_WRITE], row) for at in range(0, len(keys), ROWS_A_WRITE)]
    write_us = _each(lambda rows: store.apply(0, rows, 1), slices) * len(slices) / len(keys)
    read_us = _each(lambda key: store.get(0, key), keys)
    store.close(0)
    return {"write_row": write_us, "read_row": read_us, "produce_row": _produced(lab, keys, row)}


def _produced(lab: Lab, keys: Sequence[bytes], row: bytes) -> float:
    lab.provision([Topology("parts", (TOPIC,), partitions=1)])
    producer = TransactionalProducer(lab.settings.bootstrap, "parts")
    spent: list[float] = []
    for _ in range(REPEATS):
        spent.append(_cpu_us(lambda: producer.send([Record(TOPIC.name, key, row, 0) for key in keys])))
        producer.commit({}, group_metadata("parts", 1, "nobody"))
    return min(spent) / len(keys)


def _each(work: Callable[[Any], object], items: Sequence[Any]) -> float:
    def all_of_them() -> None:
        for item in items:
            work(item)

    return min(_cpu_us(all_of_them) for _ in range(REPEATS)) / len(items)


def _cpu_us(work: Callable[[], object]) -> float:
    """CPU time of the thread that Python runs in; libraries use others beside it."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e6


async def _read(lab: Lab, source: Input) -> tuple[float, list[ReadRecord]]:
    """The first records, as the engine fetches them, and what each cost the thread that Python runs in."""
    reader = Reader(lab.settings.bootstrap, "bench")
    try:
        reader.assign({Place(source.topic.name, partition): 0 for partition in range(PARTITIONS)})
        records: list[ReadRecord] = []
        began = time.thread_time()
        while len(records) < min(MOST, source.count):
            for fetched in (await reader.getmany(timeout_ms=1_000, max_records=500)).values():
                records += fetched
        return (time.thread_time() - began) * 1e6 / len(records), records
    finally:
        await reader.stop()
