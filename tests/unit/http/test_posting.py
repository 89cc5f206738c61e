"""A command is read alike by its own route and by FastAPI, to which the route leaves what is seldom sent."""

from __future__ import annotations

import httpx
import pytest

pytestmark = pytest.mark.anyio

BODIES = [
    b'{"amount_cents": 1}',
    b' \n{"amount_cents": 1}',
    b'{"amount_cents": 1, "amount_cents": 2}',
    b'{"amount_cents": "1"}',
    b'{"amount_cents": 1.0}',
    b'{"amount_cents": 1.5}',
    b'{"amount_cents": true}',
    b'{"amount_cents": 0}',
    b'{"amount_cents": 1e400}',
    b'{"amount_cents": NaN}',
    b'{"amount_cents": %s}' % (b"9" * 30),
    b'{"amount_cents": %s}' % (b"9" * 5000),
    b'{"amount_cents": 1, "more": 1}',
    b"{}",
    b"null",
    b"[]",
    b"",
    b"{",
    b'{"amount_cents": 1}{',
    b"\xff",
    b"[" * 5000,
    '{"amount_cents": 1}'.encode("utf-16"),
    '{"amount_cents": 1}'.encode("utf-8-sig"),
]


KEYS = ["a", "a" * 128, "a" * 129, "", ".", "..", "a b", "\u00e4", "a,b"]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
@pytest.mark.parametrize(
    "path", ["/accounts/ann", "/accounts/ann/charges", "/accounts/a%2Fb/charges", "/accounts/%00/charges"]
)
async def test_a_body_is_taken_or_refused_alike(http: httpx.AsyncClient, path: str, body: bytes) -> None:
    await http.post("/accounts/ann")
    assert await answered(http, path, body, "a", CHEAP) == await answered(http, path, body, "a", BY_FASTAPI)


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_is_taken_or_refused_alike(http: httpx.AsyncClient, key: str) -> None:
    """The second is a repeat of the first, and has its answer."""
    body = b'{"amount_cents": 1}'
    await http.post("/accounts/ann")
    cheap = await answered(http, "/accounts/ann/charges", body, key, CHEAP)
    assert cheap == await answered(http, "/accounts/ann/charges", body, key, BY_FASTAPI)


async def test_what_is_sent_as_most_is_costs_less(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await http.post("/accounts/ann")
    monkeypatch.setattr("fastapi.routing.solve_dependencies", None)  # what is spared
    status, _ = await answered(http, "/accounts/ann/charges", BODIES[0], "a", CHEAP)
    assert status == 201


CHEAP, BY_FASTAPI = "application/json", "application/json; charset=utf-8"


async def answered(http: httpx.AsyncClient, path: str, body: bytes, key: str, content_type: str) -> tuple[int, str]:
    headers = {b"Content-Type": content_type.encode(), b"Idempotency-Key": key.encode("latin-1")}
    answer = await http.post(path, content=body, headers=headers)
    return answer.status_code, answer.text
