"""Onefold's engine, as a worker with its HTTP side.

BENCH_SERVICE=s BENCH_SOURCE=topic BENCH_WORK=fold|raw|decide python -m faust -A bench.sides.engine worker
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import json

from bench.domain import DECIDER, Sales, Sell, Sold, project
from bench.topology import engine_topology
from shared.domain.row import Row, RowCodec
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor, Processor, ProjectionProcessor
from shared.http.commands import Accepted, Commands, Headers
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.http.queries import Queries, ReadingQuery
from shared.service import worker_app
from shared.tables.rows import Rows
from shared.topology.projection import Projection
from shared.topology.records import SourceRecord
from shared.topology.topics import Table, Topic, Topology


class RawCodec(RowCodec[dict[str, int]]):
    """The same JSON as of typed rows, unchecked."""

    def __init__(self) -> None:
        super().__init__(dict[str, int])

    def encode(self, row: Row[dict[str, int]]) -> bytes:
        return json.encode(row)

    def encode_checked(self, rows: Sequence[Row[dict[str, int]]]) -> list[bytes]:
        return [self.encode(row) for row in rows]

    def decode(self, raw: bytes) -> Row[dict[str, int]]:
        return Row(**json.decode(raw))

    def decode_whole(self, raw: bytes) -> Row[dict[str, int]]:
        return self.decode(raw)


class RawFold(Processor):
    """The fold without models: what the engine itself costs."""

    def __init__(self, table: Table) -> None:
        self.name = table.name
        self.source = table.source
        self.table = table
        self.codec = RawCodec()

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        assert record.key is not None
        event = json.decode(record.value or b"")
        row = rows.get(record.key) or EMPTY
        if record.offset > row.offset:
            count, cents = row.state["count"] + 1, row.state["sum_cents"] + event["data"]["amount_cents"]
            rows.put(record.key, Row(row.sequence + 1, {"count": count, "sum_cents": cents}, {}, record.offset))


EMPTY: Row[dict[str, int]] = Row(0, {"count": 0, "sum_cents": 0}, {}, -1)


def processor(work: str, topology: Topology) -> Processor:
    table = topology.tables[0]
    match work:
        case "fold":
            return ProjectionProcessor(Projection(table, project, initial=Sales(), events=(Sold,), state=Sales))
        case "raw":
            return RawFold(table)
        case "decide":
            return AggregateProcessor(DECIDER, table=table, events=topology.topics[1])
        case _:
            raise ValueError(f"no work is called {work}")


def routes(node: Node, peers: Peers) -> list[APIRouter]:
    router, table = APIRouter(prefix="/sales"), node.topology.tables[0]
    sales = Queries(node, peers, table, view)
    intake = Commands(node, peers, DECIDER, table, path="/sales")

    @router.get("/{customer}", response_model=Sales)
    async def get_sales(request: Request, customer: PathId, reading: ReadingQuery) -> Response:
        return await sales.by_id(request, customer, reading)

    @router.post("/{customer}", status_code=201, response_model=Accepted)
    async def sell(request: Request, customer: PathId, headers: Headers, body: Sell) -> Response:
        return await intake.submit(request, customer, body, headers)

    return [router]


def view(customer: str, row: Row[Sales]) -> Sales:
    return row.state


if "BENCH_SERVICE" in os.environ:
    owned = engine_topology(os.environ["BENCH_SERVICE"], Topic(os.environ["BENCH_SOURCE"]))
    app = worker_app(owned, [processor(os.environ["BENCH_WORK"], owned)], routes)
