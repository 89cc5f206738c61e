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
from shared.es.row import Row, RowCodec
from shared.es.step import step
from shared.kafka.reader import Reader, ReadRecord

MOST = 50_000  # records that are looked at
REPEATS = 5


def parts(lab: Lab, begin: Begin, load: Load) -> Report:
    """Microseconds of CPU for each record or row; the best of some repeats, because others only ever add."""
    events = lab.events(begin, load.events, load.keys)
    commands = lab.commands(begin, load.events, load.keys)
    with begin("parts"):
        read_us, sold = asyncio.run(_read(lab, events))
        _, sell = asyncio.run(_read(lab, commands))
        decoded = [EVENT_CODEC.decode(record.value) for record in sold]
        ordered = [DECIDER.command_codec.decode(record.value) for record in sell]
        view, rows = Sales(count=1, sum_cents=1), RowCodec[Sales](Sales)
        row = Row(1, view, {}, 1)
        encoded = rows.encode(row)
        found = {
            "read": read_us,
            "decode_event": _each(lambda record: EVENT_CODEC.decode(record.value), sold),
            "project": _each(lambda event: project(view, event, "customer"), decoded),
            "decode_row": _each(rows.decode, [encoded] * len(sold)),
            "encode_row": _each(rows.encode, [row] * len(sold)),
            "decode_command": _each(lambda record: DECIDER.command_codec.decode(record.value), sell),
            "decide_and_evolve": _each(lambda command: step(DECIDER, DECIDER.initial_row, command, 1), ordered),
        }
    return Report([Result(f"part_{name}", {"cpu_us": round(cpu_us, 2)}) for name, cpu_us in found.items()])


def _each(work: Callable[[Any], object], items: Sequence[Any]) -> float:
    def all_of_them() -> None:
        for item in items:
            work(item)

    return min(_cpu_us(all_of_them) for _ in range(REPEATS)) / len(items)


def _cpu_us(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6


async def _read(lab: Lab, source: Input) -> tuple[float, list[ReadRecord]]:
    """The first records, as the engine fetches them, and what each cost the thread that Python runs in."""
    reader = Reader(lab.settings.bootstrap, "bench")
    try:
        reader.assign({(source.topic.name, partition): 0 for partition in range(PARTITIONS)})
        records: list[ReadRecord] = []
        began = time.thread_time()
        while len(records) < min(MOST, source.count):
            for fetched in (await reader.getmany(timeout_ms=1_000, max_records=500)).values():
                records += fetched
        return (time.thread_time() - began) * 1e6 / len(records), records
    finally:
        await reader.stop()
