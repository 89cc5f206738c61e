"""A copied process runs beside its model, with the same neighbours: neither gets the other's answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.scaffold.checkout import Checkout
from tests.waiting import eventually

NOON = "1997-01-18T12:00:00Z"
HEADERS = {"Occurred-At": NOON, "Idempotency-Key": "once"}  # one command per aggregate, so none is a repeat

Urls = dict[str, str]


@pytest.fixture
def urls(checkout: Checkout) -> Iterator[Urls]:
    """The URL of one worker of each service; `up` finds the new service by its folder."""
    shutil.rmtree(checkout.root / "services" / "sales")
    checkout.verb("new-service", "bookings", "--like", "orders")
    command = [sys.executable, "-m", "shared.dev.cli", "up", "--json"]
    with subprocess.Popen(command, cwd=checkout.root, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout
        try:
            line = up.stdout.readline()
            assert line, f"`up` ended with {up.wait()}"
            yield {service: workers[0]["url"] for service, workers in json.loads(line)["services"].items()}
        finally:
            up.terminate()


def post(url: str, body: dict[str, Any]) -> None:
    answer = httpx.post(url, json=body, headers=HEADERS, timeout=60.0)
    assert answer.status_code == httpx.codes.CREATED, answer.text


def shown(url: str, **wanted: object) -> dict[str, Any]:
    """The row, once it has these fields."""
    return eventually(lambda: dict(httpx.get(url, timeout=60.0).json()), lambda row: wanted.items() <= row.items())


@pytest.mark.long  # in short, the ids of a renamed process, in tests/unit/orders/test_policies
@pytest.mark.broker
def test_two_processes_with_the_same_ids_and_keys_do_not_take_each_others_answers(urls: Urls) -> None:
    assert urls.keys() == {"accounts", "inventory", "orders", "pickups", "bookings"}
    item, account = f"{urls['inventory']}/items/abba", f"{urls['accounts']}/accounts/ann"
    post(f"{item}/deliveries", {"quantity": 5})
    post(account, {})
    for service, quantity in (("orders", 2), ("bookings", 3)):
        line = {"sku": "abba", "quantity": quantity, "amount_cents": quantity * 100}
        post(f"{urls[service]}/{service}/1", {"customer_id": "ann", "lines": [line], "placed_at": NOON})
    for service in ("orders", "bookings"):
        assert shown(f"{urls[service]}/{service}/1", phase="confirmed")["sequence"] == 3
    shown(item, physical=0, reserved=0)
    shown(account, balance_cents=500, held_cents=0)

    line = {"sku": "abba", "quantity": 1, "amount_cents": 1}
    post(f"{urls['bookings']}/bookings/2", {"customer_id": "ann", "lines": [line], "placed_at": NOON})
    assert shown(f"{urls['bookings']}/bookings/2", phase="rejected")["code"] == "inventory.out_of_stock"
    assert httpx.get(f"{urls['orders']}/orders/2", timeout=60.0).status_code == httpx.codes.NOT_FOUND
