"""What is known of an order while it is open: what it waits for, and since when."""

from typing import Literal

from shared.domain import Instant, State


class Open(State):
    """The row ends with the order. since: when it began to wait for this."""

    customer_id: str
    waits_for: Literal["stock", "payment"]
    since: Instant
