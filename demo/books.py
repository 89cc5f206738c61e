"""The books that the shop must end with, added up from the file without any service code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from demo.cdnow import Purchase
from demo.rules import BY_COURIER_CENTS, DELIVERED, SKUS, order_id, refusal_of, sku_of

CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Books:
    """orders: `confirmed`, or the code of the rejection. accounts: cents owed by customer. items: pieces left by SKU.

    days: cents of revenue by day. pickups: the phase of the call to the courier, by order.
    """

    orders: Mapping[str, str]
    accounts: Mapping[str, int]
    items: Mapping[str, int]
    days: Mapping[str, int]
    pickups: Mapping[str, str]


def expected_books(purchases: Iterable[Purchase], called: str = "done") -> Books:
    """A customer without a confirmed order owes 0. called: the phase of every call to the courier."""
    orders: dict[str, str] = {}
    accounts: Counter[str] = Counter()
    items = dict.fromkeys(SKUS, DELIVERED)
    days: Counter[str] = Counter()
    pickups: dict[str, str] = {}
    for purchase in purchases:
        refusal = refusal_of(purchase)
        orders[order_id(purchase)] = refusal or CONFIRMED
        accounts[purchase.customer] += 0 if refusal else purchase.amount_cents
        if not refusal:
            items[sku_of(purchase)] -= purchase.cds
            days[purchase.date.date().isoformat()] += purchase.amount_cents
            if purchase.amount_cents >= BY_COURIER_CENTS:
                pickups[order_id(purchase)] = called
    return Books(orders, dict(accounts), items, dict(days), pickups)
