"""A purchase is the same order at every run, and one that the service understands."""

from __future__ import annotations

from collections import Counter

from demo.cdnow import read_purchases
from demo.traffic import SKUS, order_body, sku_of
from services.orders.domain.commands import PlaceOrder


def test_every_purchase_is_an_order_of_its_cds_for_its_dollars() -> None:
    for purchase in read_purchases()[::1000]:
        (line,) = (order := PlaceOrder.model_validate(order_body(purchase))).lines
        assert (order.customer_id, order.placed_at) == (purchase.customer, purchase.date)
        assert (line.quantity, line.amount_cents) == (purchase.cds, purchase.amount_cents)


def test_the_items_are_two_hundred_and_none_is_rare() -> None:
    sold = Counter(map(sku_of, read_purchases()))
    assert len(sold) == SKUS
    assert min(sold.values()) > 200
    assert sku_of(read_purchases()[0]) == "cd-119"
