"""The story of a message over HTTP, as far as it is found in seconds; `dev.py story` takes the time that it needs."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from shared.domain.errors import NotReady
from shared.http.node import Node
from shared.http.paths import Segment
from shared.http.problems import Problem, problem
from shared.kafka.brokers import BrokersUnavailable
from shared.operations.provision import load_topologies
from shared.runtime.clock import brokers_clock
from shared.stories.search import NoStory, NotReached, find_story
from shared.stories.story import Story

WITHIN_S = 5.0  # then the answer has what was found

UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "Nothing has this id, or `story.not_reached`: nothing recent has"},
    503: {"model": Problem, "description": "The brokers do not answer"},
}


def router(node: Node) -> APIRouter:
    routes = APIRouter(prefix="/stories", tags=["operations"])

    @routes.get("/{story_id}", response_model=Story, responses=UNKNOWN)
    async def get_story(request: Request, story_id: Segment) -> Response:
        """All that one message came from and led to, in all services. No contents: the API shows those to their owners.

        story_id: a correlation id, which for callers is their Idempotency-Key; the id of a command or an event; or a
        place, topic/partition/offset.
        """
        with request.app.state.turns.turn(request):
            try:
                story = await asyncio.to_thread(_story, node, story_id)
            except NoStory as none:
                return problem(404, "not_found", str(none))
            except NotReached as older:
                return problem(404, "story.not_reached", str(older))
            except BrokersUnavailable as silent:
                raise NotReady(str(silent)) from silent
        return Response(story.model_dump_json(), media_type="application/json")

    return routes


def _story(node: Node, story_id: str) -> Story:
    topologies = {each.service: each for each in load_topologies()} | {node.topology.service: node.topology}
    now_ms = int(brokers_clock.now() * 1000)
    return find_story(node.settings.bootstrap, topologies.values(), story_id, now_ms=now_ms, within_s=WITHIN_S)
