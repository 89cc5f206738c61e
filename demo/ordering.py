"""A purchase, ordered over HTTP. Both functions may be repeated."""

from __future__ import annotations

from http import HTTPStatus

from demo.cdnow import Purchase
from demo.client import Answer, Client
from demo.replay import order_of
from demo.rules import order_id


async def place(orders: Client, purchase: Purchase) -> Answer:
    headers = {"Idempotency-Key": order_id(purchase), "Occurred-At": purchase.date.isoformat()}
    return await orders.post(f"/orders/{order_id(purchase)}", order_of(purchase).model_dump(mode="json"), headers)


async def is_placed(orders: Client, purchase: Purchase) -> bool:
    return (await orders.get(f"/orders/{order_id(purchase)}")).status == HTTPStatus.OK
