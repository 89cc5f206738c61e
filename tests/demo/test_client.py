from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from demo import client as module
from demo.client import Answer, Client
from shared.dev.stages import StageFailed

NOBODY = "http://127.0.0.1:1"


@asynccontextmanager
async def worker(statuses: Sequence[int], seen: list[str | None]) -> AsyncIterator[str]:
    """The URL of a worker that answers with `statuses`, one after the other, and notes the keys it is sent."""
    left = iter(statuses)

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Idempotency-Key"))
        return web.json_response({"code": "x"}, status=next(left))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def charged(statuses: Sequence[int], seen: list[str | None], *other_urls: str) -> Answer:
    async with worker(statuses, seen) as url, Client([*other_urls, url]) as client:
        return await client.post("/accounts/1/charges", {"amount_cents": 1}, {"Idempotency-Key": "k"})


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


@pytest.mark.parametrize("status", [200, 201, 202, 404, 409])
def test_an_answer_is_given_back(status: int) -> None:
    answer = asyncio.run(charged([status], []))
    assert (answer.status, answer.body) == (status, {"code": "x"})


def test_what_is_not_ready_is_asked_again_with_the_same_key() -> None:
    seen: list[str | None] = []
    assert asyncio.run(charged([503, 503, 201], seen)).status == 201
    assert seen == ["k", "k", "k"]


def test_where_nobody_listens_the_next_worker_is_asked() -> None:
    assert asyncio.run(charged([201], [], NOBODY)).status == 201


def test_what_can_not_get_better_fails_at_once() -> None:
    with pytest.raises(StageFailed, match="POST /accounts/1/charges: 500"):
        asyncio.run(charged([500], []))


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with pytest.raises(StageFailed, match="503"):
        asyncio.run(charged([503], []))


async def words(statuses: Sequence[int]) -> list[dict[str, object]]:
    async with worker(statuses, []) as url, Client([NOBODY, url]) as client:
        return await client.from_all("/cluster")


@pytest.mark.parametrize(("status", "heard"), [(200, [{"code": "x"}]), (503, [])])
def test_of_all_workers_those_are_heard_that_can_answer(status: int, heard: list[dict[str, object]]) -> None:
    assert asyncio.run(words([status])) == heard


def test_a_worker_that_fails_is_not_passed_over() -> None:
    with pytest.raises(StageFailed, match="GET /cluster: 500"):
        asyncio.run(words([500]))
