"""Materialised state over HTTP, by key, from whichever worker is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from shared.es.ids import check_aggregate_id
from shared.es.row import Row
from shared.http.node import Node
from shared.http.peers import Peers
from shared.http.problems import Problem, problem
from shared.positions import format_positions
from shared.topology import Table

RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "Nothing has this id"},
    422: {"model": Problem, "description": "Not a valid request"},
    503: {"model": Problem, "description": "Not ready; try again after Retry-After"},
}


class Queries:
    """Reads one table."""

    def __init__(self, node: Node, peers: Peers, table: Table, present: Callable[[str, Row[Any]], BaseModel | None]):
        """present: a row as the API shows it; None when it shows nothing."""
        self._node = node
        self._peers = peers
        self._table = table
        self._present = present

    async def by_id(self, request: Request, aggregate_id: str) -> Response:
        key = check_aggregate_id(aggregate_id).encode()
        partition = self._node.partition(key)
        if not self._node.serves(self._table, partition):
            return await self._peers.forward(request, self._node.owner(self._table, partition))
        row = self._node.read(self._table, partition, key)
        body = self._present(aggregate_id, row) if row else None
        position = {(self._table.source.name, partition): self._node.position(self._table, partition)}
        headers = {
            "Onefold-Partition": str(partition),
            "Onefold-Owner": self._node.settings.url,
            "Onefold-Position": format_positions(position),
        }
        if row is None or body is None:
            return problem(404, "not_found", f"nothing has the id {aggregate_id!r}", headers=headers)
        headers["ETag"] = f'"{row.sequence}"'
        return Response(body.model_dump_json(), media_type="application/json", headers=headers)
