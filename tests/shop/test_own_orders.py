"""Two workers of orders that require tokens: whichever is asked, a caller meets its own orders and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import httpx
import pytest

from shared.dev.issuer import DevIssuer
from shared.dev.stack import Stack
from tests.conftest import guarded_by
from tests.waiting import eventually

pytestmark = pytest.mark.broker

ORDERS = 12  # of each customer, over all partitions


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> DevIssuer:
    issuer = DevIssuer(tmp_path_factory.mktemp("issuer"))
    issuer.key()
    return issuer


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory, issuer: DevIssuer) -> Iterator[list[str]]:
    root: Path = tmp_path_factory.mktemp("own-orders")
    with Stack(root, {"orders": 2}, settings=guarded_by(issuer, "orders")) as stack:
        yield stack.urls("orders")


def bearer(issuer: DevIssuer, customer: str, *more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {issuer.token('orders', ['orders:read', 'orders:write', *more], customer)}"}


def place(url: str, order: str, customer: str, headers: Mapping[str, str]) -> httpx.Response:
    body = {
        "customer_id": customer,
        "lines": [{"sku": "mug", "quantity": 1, "amount_cents": 500}],
        "placed_at": "2026-11-01T10:00:00Z",
    }
    ask = partial(
        httpx.post, f"{url}/orders/{order}", json=body, headers={**headers, "Idempotency-Key": order}, timeout=30
    )
    return eventually(ask, lambda answer: answer.status_code != 503)


@pytest.mark.long  # in short, accounts and their holders, in tests/queries
def test_every_worker_shows_and_takes_only_the_callers_orders(urls: list[str], issuer: DevIssuer) -> None:
    ann, bob = bearer(issuer, "ann"), bearer(issuer, "bob")
    for number in range(ORDERS):
        for customer, headers in (("ann", ann), ("bob", bob)):
            assert place(urls[0], f"{customer}-{number}", customer, headers).status_code == 201
    for url in urls:
        listed = httpx.get(f"{url}/orders?complete=true&limit=500", headers=bob, timeout=30).json()["items"]
        assert {order["order_id"] for order in listed} == {f"bob-{number}" for number in range(ORDERS)}
        everybodys = httpx.get(f"{url}/orders?complete=true", headers=bearer(issuer, "clerk", "orders:any"), timeout=30)
        assert len(everybodys.json()["items"]) == 2 * ORDERS
        for number in range(ORDERS):
            order = f"{url}/orders/ann-{number}"
            assert httpx.get(order, headers=ann, timeout=30).status_code == 200
            assert httpx.get(order, headers=bob, timeout=30).status_code == 404
            assert httpx.post(f"{order}/cancellation", headers=bob, timeout=30).status_code == 404
            assert place(url, f"ann-{number}", "bob", bob).status_code == 403
        assert place(url, "new", "ann", bob).status_code == 403
