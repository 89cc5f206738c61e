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
    async with served(app) as url:
        yield url


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
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
def test_an_answer_is_returned(status: int) -> None:
    answer = asyncio.run(charged([status], []))
    assert (answer.status, answer.body) == (status, {"code": "x"})


def test_a_worker_that_is_not_ready_is_asked_again_with_the_same_key() -> None:
    seen: list[str | None] = []
    assert asyncio.run(charged([503, 503, 201], seen)).status == 201
    assert seen == ["k", "k", "k"]


def test_the_next_worker_is_asked_when_nothing_listens() -> None:
    assert asyncio.run(charged([201], [], NOBODY)).status == 201


def test_a_500_fails_at_once() -> None:
    with pytest.raises(StageFailed, match="POST /accounts/1/charges: 500"):
        asyncio.run(charged([500], []))


def test_retries_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with pytest.raises(StageFailed, match="503"):
        asyncio.run(charged([503], []))


@asynccontextmanager
async def listing(rows: dict[int, list[int]], page: int) -> AsyncIterator[str]:
    """The URL of a worker that lists `rows` by partition, at most `page` of them at a time."""

    async def answer(request: web.Request) -> web.Response:
        asked = {int(number) for number in request.query.get("partitions", "0,1").split(",")}
        found = [row for partition in sorted(asked) for row in rows[partition]]
        start = int(request.query.get("cursor", "=0").strip("="))
        end = start + min(page, int(request.query["limit"]))
        return web.json_response(
            {
                "items": [{"id": row} for row in found[start:end]],
                "cursor": f"={end}=" if end < len(found) else None,
                "partitions": [{"partition": partition} for partition in sorted(asked)],
            }
        )

    app = web.Application()
    app.router.add_get("/rows", answer)
    async with served(app) as url:
        yield url


def test_a_list_is_read_to_the_end_of_every_partition() -> None:
    async def read() -> list[dict[str, object]]:
        async with listing({0: [1, 2, 3, 4, 5], 1: [6]}, page=2) as url, Client([url]) as client:
            return await client.all_of("/rows")

    assert sorted(str(row["id"]) for row in asyncio.run(read())) == ["1", "2", "3", "4", "5", "6"]
