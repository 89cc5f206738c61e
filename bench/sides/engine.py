"""Onefold's engine, as a worker with its HTTP side.

BENCH_SERVICE=s BENCH_SOURCE=topic BENCH_WORK=fold python -m faust -A bench.sides.engine worker
"""

from __future__ import annotations

import os

from fastapi import APIRouter, Request, Response

from bench.domain import DECIDER, Sales, Sold, project
from bench.topology import engine_topology
from shared.es.row import Row
from shared.http.node import Node
from shared.http.peers import Peers
from shared.http.queries import Queries, ReadingQuery
from shared.streams.processors import Aggregate, Processor, Projection
from shared.topology import Topic, Topology
from shared.worker import service_app


def processor(work: str, topology: Topology) -> Processor:
    table = topology.tables[0]
    match work:
        case "fold":
            return Projection(project, initial=Sales(), events=[Sold], state=Sales, table=table)
        case "decide":
            return Aggregate(DECIDER, table=table, events=topology.topics[1])
        case _:
            raise ValueError(f"no work is called {work}")


def routes(node: Node, peers: Peers) -> list[APIRouter]:
    router = APIRouter(prefix="/sales")
    sales = Queries(node, peers, node.topology.tables[0], view)

    @router.get("/{customer}", response_model=Sales)
    async def get_sales(request: Request, customer: str, reading: ReadingQuery) -> Response:
        return await sales.by_id(request, customer, reading)

    return [router]


def view(customer: str, row: Row[Sales]) -> Sales:
    return row.state


if "BENCH_SERVICE" in os.environ:
    owned = engine_topology(os.environ["BENCH_SERVICE"], Topic(os.environ["BENCH_SOURCE"]))
    app = service_app(owned, [processor(os.environ["BENCH_WORK"], owned)], routes)
