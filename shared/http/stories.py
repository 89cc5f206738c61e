"""The story of a message over HTTP, as far as it is found in seconds; `dev.py story` takes the time that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

from fastapi import APIRouter, Request, Response

from shared.domain.errors import NotReady
from shared.http.limits import Turns
from shared.http.node import Node
from shared.http.paths import Segment
from shared.http.problems import Problem, problem
from shared.http.waiting import while_connected
from shared.kafka.brokers import BrokersUnavailable
from shared.operations.provision import load_topologies
from shared.runtime.clock import brokers_clock
from shared.stories.search import NoStory, NotReached, find_story
from shared.stories.story import Story

WITHIN_S = 5.0  # then the answer has what was found
SILENT_S = 3.0  # how long after that brokers may still be silent
AT_ONCE = 2  # a search takes a core as far as the brokers give one

UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "Nothing has this id, or `story.not_reached`: nothing recent has"},
    503: {"model": Problem, "description": "The brokers do not answer"},
}


def router(node: Node) -> APIRouter:
    routes = APIRouter(prefix="/stories", tags=["operations"])
    turns = Turns(AT_ONCE, "stories")
    # its own: asyncio's are for what takes milliseconds
    threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stories")

    @routes.get("/{story_id}", response_model=Story, responses=UNKNOWN)
    async def get_story(request: Request, story_id: Segment) -> Response:
        """All that one message came from and led to, in all services. No contents: the API shows those to their owners.

        story_id: a correlation id, which for callers is their Idempotency-Key; the id of a command or an event; or a
        place, topic/partition/offset.
        """
        return await while_connected(request, answer(request, story_id), request.app.state.closing)

    async def answer(request: Request, story_id: str) -> Response:
        try:
            story = await found(request, story_id)
        except NoStory as none:
            return problem(404, "not_found", str(none))
        except NotReached as older:
            return problem(404, "story.not_reached", str(older))
        except BrokersUnavailable as silent:
            raise NotReady(str(silent)) from silent
        return Response(story.model_dump_json(), media_type="application/json")

    async def found(request: Request, story_id: str) -> Story:
        """The story. Its turn ends with its thread, which may be a while after the request was given up."""
        turn, given_up, loop = ExitStack(), Event(), asyncio.get_running_loop()
        turn.enter_context(turns.turn(request))

        def leave(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended, and the turns with it
                loop.call_soon_threadsafe(turn.close)

        search = threads.submit(_story, node, story_id, given_up.is_set)
        search.add_done_callback(leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(search), WITHIN_S + SILENT_S)
        except TimeoutError:
            raise NotReady(f"the brokers have not answered within {WITHIN_S + SILENT_S:.0f} s") from None
        finally:
            given_up.set()

    return routes


def _story(node: Node, story_id: str, stopped: Callable[[], bool]) -> Story:
    topologies = {each.service: each for each in load_topologies()} | {node.topology.service: node.topology}
    now_ms = int(brokers_clock.now() * 1000)
    return find_story(
        node.settings.bootstrap, topologies.values(), story_id, now_ms=now_ms, within_s=WITHIN_S, stopped=stopped
    )
