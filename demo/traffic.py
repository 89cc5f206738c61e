"""python -m demo.traffic: places real purchases as orders at services that are already running, then compares balances.

Each purchase is an order of one line: its CDs, of a made-up SKU, and its dollars. No limits, nothing discontinued.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

import typer

from demo.cdnow import Purchase, balances, first_purchases
from demo.client import Client
from demo.ordering import is_placed, place
from demo.progress import for_each, rate
from demo.rules import DELIVERED, order_id, sku_of
from demo.verdict import Verdict, judge
from shared.dev.stages import Stage, StageFailed, stage

_STAGES = 4
_WAIT_S = 20
_OVER = ("confirmed", "rejected", "cancelled")
_PATIENCE = 10

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def traffic(
    purchases: Annotated[int, typer.Option(min=1, help="The first so many of 69,659, by date.")] = 1_000,
    accounts: Annotated[str, typer.Option(help="Any worker of accounts.")] = "http://accounts:8000",
    inventory: Annotated[str, typer.Option(help="Any worker of inventory.")] = "http://inventory:8000",
    orders: Annotated[str, typer.Option(help="Any worker of orders.")] = "http://orders:8000",
) -> None:
    """Order what customers bought, wait until every order is confirmed, and compare what each customer owes.

    A second run repeats the same orders, which changes nothing; one with more purchases adds to them, and one with
    fewer is refused.
    """
    chosen = first_purchases(purchases + 1)
    try:
        verdict = asyncio.run(_send(chosen[:purchases], chosen[purchases:], accounts, inventory, orders))
    except StageFailed as failure:
        verdict = Verdict(False, f"verdict: FAILED {failure}")
    typer.echo(verdict.line)
    sys.exit(0 if verdict.agrees else 1)


async def _send(
    purchases: Sequence[Purchase], beyond: Sequence[Purchase], accounts: str, inventory: str, orders: str
) -> Verdict:
    """beyond: the next purchase, if there is one."""
    async with Client([accounts]) as ledger, Client([inventory]) as stock, Client([orders]) as desk:
        services = Services(ledger, stock, desk)
        if any([await services.has(purchase) for purchase in beyond]):
            raise StageFailed("more purchases were ordered here before", "name at least as many with --purchases")
        expected = sorted(balances(purchases).items())
        customers = [customer for customer, _ in expected]
        with stage(f"[1/{_STAGES}]", "stock", sys.stdout) as now:
            skus = sorted({sku_of(purchase) for purchase in purchases})
            await for_each(services.deliver, skus, now, "delivered")
            now.done = f"{len(skus)} items in stock"
        with stage(f"[2/{_STAGES}]", "accounts", sys.stdout) as now:
            await for_each(services.open_account, customers, now, "opened")
            now.done = f"{len(customers):,} open"
        with stage(f"[3/{_STAGES}]", "orders", sys.stdout) as now:
            now.done = await services.order_all(purchases, now)
        with stage(f"[4/{_STAGES}]", "compare", sys.stdout) as now:
            found = await for_each(services.balance, expected, now, "asked")
            now.done = f"{len(found):,} accounts asked"
    return judge({"accounts": dict(expected)}, {"accounts": dict(zip(customers, found, strict=True))})


class Services:
    """The services as a customer uses them; every method may be repeated."""

    def __init__(self, accounts: Client, inventory: Client, orders: Client) -> None:
        self._accounts = accounts
        self._inventory = inventory
        self._orders = orders

    async def deliver(self, sku: str) -> None:
        """Makes the first delivery of an item that has had none."""
        if (await self._inventory.get(f"/items/{sku}")).status == HTTPStatus.NOT_FOUND:
            key = {"Idempotency-Key": f"cdnow-delivery-{sku}"}
            await self._inventory.post(f"/items/{sku}/deliveries", {"quantity": DELIVERED}, key)

    async def open_account(self, customer: str) -> None:
        await self._accounts.post(f"/accounts/{customer}", {}, {"Idempotency-Key": f"cdnow-open-{customer}"})

    async def has(self, purchase: Purchase) -> bool:
        return await is_placed(self._orders, purchase)

    async def order_all(self, purchases: Sequence[Purchase], now: Stage) -> str:
        phases = await for_each(self.order, purchases, now, "ended")
        confirmed = phases.count("confirmed")
        if confirmed < len(phases):
            raise StageFailed(f"{len(phases) - confirmed} orders were not confirmed", "see GET /orders?phase=rejected")
        return f"{confirmed:,} confirmed, {rate(confirmed, now)}"

    async def order(self, purchase: Purchase) -> str:
        """The phase in which the order ended."""
        await place(self._orders, purchase)
        for _ in range(_PATIENCE):
            answer = await self._orders.get(f"/orders/{order_id(purchase)}?until=phase:confirmed&wait={_WAIT_S}")
            if answer.status == HTTPStatus.OK and answer.body["phase"] in _OVER:
                break
        return str(answer.body.get("phase"))

    async def balance(self, expected: tuple[str, int]) -> int:
        """What the customer owes, after a wait for the expected cents: an order is settled after it has ended."""
        customer, cents = expected
        answer = await self._accounts.get(f"/accounts/{customer}?until=balance_cents:{cents}&wait={_WAIT_S}")
        return int(answer.body.get("balance_cents", -1))


if __name__ == "__main__":
    cli(prog_name="demo.traffic")
