"""What the demo makes up because the file does not say it: SKUs, deliveries, and why an order is refused.

All of it depends on the purchase alone, and not on how messages interleave, so the result is known beforehand.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zlib import crc32

from demo.cdnow import Purchase

SKUS = tuple(f"sku-{number:03}" for number in range(200))
DELIVERED = 1_000  # pieces of each SKU; at most 985 of one are ordered
DISCONTINUED = SKUS[::20]
DISCONTINUED_FROM = datetime(1998, 1, 1, tzinfo=UTC)
ORDER_LIMIT_CENTS = 50_00
BY_COURIER_CENTS = 150_00  # what an order costs at least for a courier to be called
_LIMITED_ONE_IN = 5


def order_id(purchase: Purchase) -> str:
    """Named after the line, not its content: 215 lines of the file repeat another."""
    return f"cdnow-{purchase.line}"


def sku_of(purchase: Purchase) -> str:
    return SKUS[crc32(f"line {purchase.line}".encode()) % len(SKUS)]


def order_limit_cents(customer: str) -> int | None:
    """The most that one order of the customer may cost; None: no limit."""
    return ORDER_LIMIT_CENTS if crc32(f"c{customer}".encode()) % _LIMITED_ONE_IN == 0 else None


def refusal_of(purchase: Purchase) -> str | None:
    """The code of the order's rejection; None when it is confirmed."""
    if sku_of(purchase) in DISCONTINUED and purchase.date >= DISCONTINUED_FROM:
        return "inventory.discontinued"
    limit = order_limit_cents(purchase.customer)
    if limit is not None and purchase.amount_cents > limit:
        return "account.order_limit_exceeded"
    return None
