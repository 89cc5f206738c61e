"""Traffic to services that already run takes their earlier purchases into account and reports no false failure."""

from __future__ import annotations

import asyncio

from aiohttp import web
from typer.testing import CliRunner

from demo.cdnow import first_purchases
from demo.rules import order_id
from demo.traffic import cli
from tests.demo.test_client import served

ORDERED = 3


def ran(purchases: int, posted: list[str]) -> tuple[int, str]:
    """Exit code and output of sending this many purchases where ORDERED were confirmed before."""
    known = {f"/orders/{order_id(purchase)}" for purchase in first_purchases(ORDERED)}

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            posted.append(request.path)
        status = 404 if request.path.startswith("/orders") and request.path not in known else 200
        return web.json_response({"phase": "confirmed", "balance_cents": 1}, status=status)

    async def run() -> tuple[int, str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with served(app) as url:
            everywhere = [f"--{name}={url}" for name in ("accounts", "inventory", "orders")]
            arguments = [f"--purchases={purchases}", *everywhere]
            result = await asyncio.to_thread(lambda: CliRunner().invoke(cli, arguments))
            return result.exit_code, result.output

    return asyncio.run(run())


def test_fewer_purchases_than_before_are_refused_before_anything_is_sent() -> None:
    posted: list[str] = []
    code, said = ran(ORDERED - 1, posted)
    assert code == 1
    assert "more purchases were ordered here before" in said
    assert posted == []


def test_as_many_purchases_as_before_are_sent_again() -> None:
    posted: list[str] = []
    assert "accounts differ" in ran(ORDERED, posted)[1]  # no account owes what it should here
    assert sum(path.startswith("/orders/") for path in posted) == ORDERED
