"""Who answers while versions of a service stand side by side: the active one, or the one that a request names."""

from __future__ import annotations

from fastapi import Request

from shared.domain.errors import NotReady
from shared.http.node import Node
from shared.http.peers import is_hop
from shared.http.problems import not_valid
from shared.runtime.routes import Routes

VERSION_HEADER = "Onefold-Version"


def other_version(request: Request, node: Node, partition: int | None = None) -> int | None:
    """The version whose worker has to answer; None if it is this worker's. partition: if only one is asked about.

    Raises NotReady while that is not known yet, and RequestValidationError for a header that names none.
    """
    own, routes = node.topology.version, node.routes
    if is_hop(request):  # it was sent to this version
        return None
    named = request.headers.get(VERSION_HEADER)
    if routes is None:
        known, wanted = {own}, own
    elif not routes.read:
        raise NotReady("which version answers is not known yet")
    else:
        known, wanted = routes.versions | {own}, routes.active.version if routes.active else own
        if partition is not None and (turn := routes.turn(partition)):
            wanted = turn.version
    if named is not None:
        if named not in map(str, known):
            versions = ", ".join(map(str, sorted(known)))
            raise not_valid("header", VERSION_HEADER.lower(), f"there are workers of version {versions}")
        wanted = int(named)
    return None if wanted == own else wanted


def acting_elsewhere(node: Node, partition: int) -> int | None:
    """The version that decides in the partition; None if it is this worker's."""
    turn = None if node.routes is None else node.routes.turn(partition)
    return None if turn is None or turn.version == node.topology.version else turn.version


def owner_in(routes: Routes | None, version: int, partition: int) -> str:
    """URL of the partition's owner in that version. Raises NotReady."""
    owner = None if routes is None else routes.owner(version, partition)
    if owner is None:
        raise NotReady(f"version {version} answers, and no worker of it has said that it owns partition {partition}")
    return owner
