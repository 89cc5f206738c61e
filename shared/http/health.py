"""What operators and load balancers ask a worker: is it alive, is it ready, how far behind is it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from shared.domain.errors import NotReady
from shared.domain.ids import AggregateId
from shared.http.cluster import Cluster, whole_cluster
from shared.http.node import Node
from shared.http.peers import Peers, is_hop
from shared.http.problems import Problem, problem
from shared.runtime.routes import Active

ALIVE, READY = "/healthz", "/readyz"
PROBES = frozenset({ALIVE, READY})

RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "There is no such partition, or the key is in another"},
    422: {"model": Problem, "description": "Not a valid request"},
    503: {"model": Problem, "description": "Not ready; see Retry-After"},
}


class ReadyQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    partition: int | None = Field(None, ge=0, description="only this partition")
    key: AggregateId | None = Field(None, description="only the partition of this key")


class Alive(BaseModel):
    status: str = "alive"


class Ready(BaseModel):
    status: str = "ready"


class Standing(BaseModel):
    """own: the version of the worker that was asked. owners: by version and partition, their URLs. former: the version
    that `rollback` goes back to, if any. by, reason: of the last switch.
    """

    own: int
    active: int
    owners: Mapping[int, Mapping[int, str]] = {}
    former: int | None = None
    by: str = ""
    reason: str = ""

    @classmethod
    def at(cls, node: Node) -> Standing:
        """As this worker knows it."""
        routes, own = node.routes, node.topology.version
        active = (routes.active if routes else None) or Active(version=own)
        owners = {each: routes.owners(each) for each in sorted(routes.versions)} if routes else {}
        told = active.model_dump(include={"former", "by", "reason"})
        return cls(own=own, active=active.version, owners=owners, **told)


def health_routes(node: Node, peers: Peers) -> APIRouter:
    """Open to anybody who can reach the port."""
    router = APIRouter(tags=["operations"])

    @router.get(ALIVE)
    async def alive() -> Alive:
        """The process is running."""
        return Alive()

    @router.get(READY, response_model=Ready, responses=RESPONSES)
    async def ready(request: Request, query: Annotated[ReadyQuery, Query()]) -> Ready | Response:
        """Every partition assigned to this worker is restored and served; or one partition is, at any worker."""
        asked = node.partition(query.key.encode()) if query.key is not None else query.partition
        if asked is None:
            if node.ready():
                return Ready()
            raise NotReady("joining the group, restoring or rebalancing")
        if asked >= node.topology.partitions:
            return problem(404, "partition.unknown", f"there are partitions 0 to {node.topology.partitions - 1}")
        if query.partition not in (None, asked):
            return problem(404, "partition.unknown", f"the key is in partition {asked}; fix: leave out partition")
        for table in node.topology.all_tables():
            if not node.serves(table, asked):
                return await peers.forward(request, node.owner(table, asked), with_body=False)
        return Ready()

    return router


def operator_routes(node: Node, peers: Peers, registry: CollectorRegistry) -> APIRouter:
    """For those who run the service."""
    router = APIRouter(tags=["operations"])

    @router.get("/cluster", response_model=Cluster)
    async def cluster(request: Request) -> Response:
        """This worker and, in `members`, `tables` and `topics`, all of them: who holds what, and how far behind."""
        found = node.status() if is_hop(request) else await whole_cluster(request, node, peers)
        return Response(found.model_dump_json(), media_type="application/json")

    @router.get("/versions", response_model=Standing)
    async def versions() -> Standing:
        """Which version of the service answers, and who owns what in each, as this worker knows it."""
        return Standing.at(node)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """This worker's metrics in Prometheus's format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
