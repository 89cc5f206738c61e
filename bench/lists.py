"""Lists that are filtered, beside a walk in the list's order that reads row after row, on the same stores."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from heapq import merge
from itertools import islice
from statistics import median
from typing import Any

import httpx

from bench.begin import Begin
from bench.lab import Lab
from bench.report import Report, Result
from bench.speed import Load
from shared.domain.message import Event
from shared.domain.row import Row
from shared.domain.state import State
from shared.engine.engine import SWITCH_S
from shared.engine.processors import ProjectionProcessor
from shared.http.api import create_api
from shared.http.resource import Resource
from shared.testing.node import StoredNode
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic, Topology

LIMIT = 50
REPEATS = 10
ROWS_A_WRITE = 20_000
TICK_S = 0.001


class Sent(Event):
    TYPE = "parcel.sent"


class Parcel(State):
    carrier: str
    phase: str
    grams: int


class ParcelView(Parcel):
    parcel_id: str


def parcel_view(parcel_id: str, row: Row[Parcel]) -> ParcelView:
    return ParcelView(parcel_id=parcel_id, **row.state.model_dump())


PARCELS = Table("parcels", source=Topic("parcels.events.v1"), indexes=("carrier", "phase", "grams", ("phase", "grams")))
TOPOLOGY = Topology("parcels", topics=(PARCELS.source,), tables=(PARCELS,))
PROJECTION = Projection(PARCELS, lambda view, _event, _key: view, initial=None, events=(Sent,), state=Parcel | None)
ROUTES = Resource("/parcels/{parcel_id}", PARCELS, parcel_view, filters=("carrier", "phase", "grams"))

# One parcel in six is carried by c0, one in forty is lost, of r, which has one in five hundred, none.
CASES: dict[str, tuple[dict[str, Any], Callable[[Parcel], bool]]] = {
    "two_filters": ({"carrier": "c0", "phase": "lost"}, lambda it: (it.carrier, it.phase) == ("c0", "lost")),
    "nothing_meets": ({"carrier": "r", "phase": "lost"}, lambda it: (it.carrier, it.phase) == ("r", "lost")),
    "range": ({"grams_min": 9_995}, lambda it: it.grams >= 9_995),
    "in_order": ({"phase": "lost", "order": "-grams"}, lambda it: it.phase == "lost"),
}


def lists(lab: Lab, begin: Begin, load: Load) -> Report:
    """Pages of 50 of `events` rows; the ratios are of CPU. held: how late a timer of the loop was, at most."""
    sys.setswitchinterval(SWITCH_S)
    node = StoredNode(TOPOLOGY, [ProjectionProcessor(PROJECTION)], PARCELS, lab.root / "lists")
    try:
        with begin(f"{load.events:,} rows"):
            rows = parcels(load.events)
            while some := dict(islice(rows, ROWS_A_WRITE)):
                node.put(some)
        report = Report()
        for name, (query, matches) in CASES.items():
            with begin(f"list, {name}") as now:
                figures, answer = asyncio.run(_listed(node, query, load.rounds * REPEATS))
                walk_ms, found = _walked(node, query, matches)
                assert [item["parcel_id"] for item in answer["items"]] == found
                now.done = f"{figures['cpu_ms']:.1f} ms of CPU, walk {walk_ms:,.1f} ms"
            scanned = [part["scanned"] for part in answer["partitions"]]
            told = {each: sum(part[each] for part in scanned) for each in ("entries", "rows")}
            report.results += [
                Result(f"list_{name}", {**figures, **told, "of_rows": load.events}),
                Result(f"walk_{name}", {"cpu_ms": walk_ms}),
            ]
            report.ratios[f"list_vs_walk_{name}"] = walk_ms / figures["cpu_ms"]
        return report
    finally:
        node.close()


def parcels(count: int) -> Iterator[tuple[str, Row[Parcel]]]:
    chance = random.Random(1)
    for number in range(count):
        carrier = "r" if chance.random() < 0.002 else f"c{chance.randrange(6)}"
        phase = "lost" if carrier != "r" and chance.random() < 0.025 else "sent"
        yield f"parcel-{number}", Row(1, Parcel(carrier=carrier, phase=phase, grams=chance.randrange(10_000)), {}, 1)


async def _listed(node: StoredNode, query: dict[str, Any], times: int) -> tuple[dict[str, float], dict[str, Any]]:
    """What a request takes, with all of its client and application, and its answer."""
    transport = httpx.ASGITransport(create_api(node, ROUTES))
    taken: list[float] = []
    spent: list[float] = []
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http, _ticking() as away:
        for _ in range(times):
            began, used = time.perf_counter(), time.process_time()
            answer = await http.get("/parcels", params={"limit": LIMIT, **query})
            taken.append(time.perf_counter() - began)
            spent.append(time.process_time() - used)
    page: dict[str, Any] = answer.json()
    return {"p50_ms": median(taken) * 1e3, "cpu_ms": median(spent) * 1e3, "held_ms": max(away) * 1e3}, page


@asynccontextmanager
async def _ticking() -> AsyncIterator[list[float]]:
    away = [0.0]

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            away.append(time.perf_counter() - began - TICK_S)

    ticker = asyncio.create_task(tick())
    yield away
    ticker.cancel()


def _walked(node: StoredNode, query: dict[str, Any], matches: Callable[[Parcel], bool]) -> tuple[float, list[str]]:
    """The CPU that it takes, in ms, to read rows in the list's order until the page is full, and the page."""
    began, found = time.process_time(), list[str]()
    for _, key, partition in _in_order(node, query.get("order", "id")):
        row = node.read(PARCELS, partition, key)
        if row is not None and matches(row.state):
            found.append(key.decode())
        if len(found) == LIMIT:
            break
    return (time.process_time() - began) * 1e3, found


def _in_order(node: StoredNode, order: str) -> Iterator[tuple[bytes, bytes, int]]:
    def walk(partition: int) -> Iterator[tuple[bytes, bytes, int]]:
        if order == "id":
            yield from ((b"", key, partition) for key in node.keys(PARCELS, partition))
            return
        for entry in node.keys_by(PARCELS, partition, order.removeprefix("-"), descending=order.startswith("-")):
            value, _, key = entry.rpartition(b"\x00")
            yield value, key, partition

    return merge(*map(walk, range(TOPOLOGY.partitions)), reverse=order.startswith("-"))
