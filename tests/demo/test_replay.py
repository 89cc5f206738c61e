"""A purchase becomes the same order in every run, and the service can decode it."""

from __future__ import annotations

from demo.cdnow import read_purchases
from demo.replay import deliveries, openings, order_of, orders
from demo.rules import DISCONTINUED, ORDER_LIMIT_CENTS, SKUS, sku_of
from services.accounts.domain.decide import DECIDER as ACCOUNT
from services.inventory.domain.decide import DECIDER as ITEM
from services.orders.domain.decide import DECIDER as ORDER


def test_every_purchase_is_an_order_of_its_cds_for_its_dollars() -> None:
    for purchase in read_purchases()[::1000]:
        (line,) = (order := order_of(purchase)).lines
        assert (order.customer_id, order.placed_at) == (purchase.customer, purchase.date)
        assert (line.sku, line.quantity, line.amount_cents) == (sku_of(purchase), purchase.cds, purchase.amount_cents)


def test_an_order_is_issued_at_its_purchase_date_and_named_after_its_line() -> None:
    purchases = read_purchases()[:2]
    envelopes = [ORDER.command_codec.decode(message.body) for message in orders(purchases)]
    assert [envelope.aggregate_id for envelope in envelopes] == ["cdnow-2", "cdnow-3"]
    assert [envelope.command_id for envelope in envelopes] == ["cdnow-2", "cdnow-3"]
    assert [envelope.issued_at for envelope in envelopes] == [purchase.date for purchase in purchases]


def test_every_customer_has_an_account_and_one_in_five_a_limit() -> None:
    purchases = read_purchases()
    opened = [ACCOUNT.command_codec.decode(message.body) for message in openings(purchases)]
    assert len({envelope.aggregate_id for envelope in opened}) == len(opened) == 23_570
    limits = [envelope.data.model_dump()["order_limit_cents"] for envelope in opened]
    assert set(limits) == {None, ORDER_LIMIT_CENTS}
    assert 0.19 < limits.count(ORDER_LIMIT_CENTS) / len(limits) < 0.21


def test_every_item_is_delivered_before_it_is_discontinued() -> None:
    told = [ITEM.command_codec.decode(message.body) for message in deliveries(read_purchases()[0].date)]
    assert [(each.type, each.aggregate_id) for each in told] == [
        *(("stock.receive", sku) for sku in SKUS),
        *(("stock.discontinue", sku) for sku in DISCONTINUED),
    ]
