"""A search for a story takes seconds: it has threads of its own, few turns, and ends when nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest

from shared.http import stories
from shared.http.api import create_api
from shared.stories.search import NoStory
from shared.stories.story import Story
from shared.testing.node import MemoryNode
from shared.topology.topics import Topology
from tests.unit.http.services import client_of
from tests.waiting import Deadline

pytestmark = pytest.mark.anyio


class Search:
    """Instead of one in the log: goes on until it is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        monkeypatch.setattr(stories, "find_story", self.find)

    def find(self, *_: object, stopped: Callable[[], bool], **__: object) -> Story:
        self.threads.append(threading.current_thread())
        while not stopped():
            threading.Event().wait(0.001)
        raise NoStory("stopped")


async def test_a_few_searches_stop_no_other_and_end_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    search, api = Search(monkeypatch), create_api(MemoryNode(Topology("coupons", ()), []), lambda *_: ())
    async with client_of(api) as ann, client_of(api, "127.0.0.2") as ben, client_of(api, "127.0.0.3") as eve:
        asked = [await begun(ann, search, 1), await begun(ben, search, 2)]
        for one_more in (ann, eve):
            refused = await one_more.get("/stories/x")
            assert refused.status_code == 429
            assert "2 stories are being answered here" in refused.json()["detail"]
        assert all(each.name.startswith("stories") for each in search.threads)
        api.state.closing.set()
        assert [(await each).status_code for each in asked] == [503, 503]


async def test_a_search_ends_with_its_request_and_leaves_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    search, api = Search(monkeypatch), create_api(MemoryNode(Topology("coupons", ()), []), lambda *_: ())
    async with client_of(api) as ann:
        for number in (1, 2, 3):
            asked = await begun(ann, search, number)
            asked.cancel()


async def test_brokers_that_are_silent_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    Search(monkeypatch)
    monkeypatch.setattr(stories, "WITHIN_S", 0.01)
    monkeypatch.setattr(stories, "SILENT_S", 0.01)
    async with client_of(create_api(MemoryNode(Topology("coupons", ()), []), lambda *_: ())) as ann:
        answer = await ann.get("/stories/x")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


async def begun(http: httpx.AsyncClient, search: Search, number: int) -> asyncio.Future[httpx.Response]:
    """A request whose search has begun, as the one of this number, once it has a turn."""
    deadline = Deadline()
    while True:
        asked = asyncio.ensure_future(http.get("/stories/x"))
        while not asked.done():
            if len(search.threads) == number:
                return asked
            deadline.check(search.threads)
            await asyncio.sleep(0.001)
        assert asked.result().status_code == 429
