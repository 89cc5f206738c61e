"""What else handles records of orders: its timers."""

from services.orders.topology import COMMANDS, TIMERS
from shared.service import Delay


def timers(deadline_s: float) -> Delay:
    """deadline_s: how long an order waits for its answers before it asks again."""
    return Delay(source=TIMERS, target=COMMANDS, delay_s=deadline_s)
