"""The pure parts of orders bound to their topics."""

from services.orders.domain.decide import DECIDER
from services.orders.policies import REACTIONS
from services.orders.topology import COMMANDS, EVENTS, ORDERS, TIMERS
from shared.service import Aggregate, Delay, Policy, Processor


def processors(deadline_s: float) -> list[Processor]:
    """deadline_s: how long an order waits for its answers before it asks again."""
    return [
        Aggregate(DECIDER, table=ORDERS, events=EVENTS),
        *map(Policy, REACTIONS),
        Delay(source=TIMERS, target=COMMANDS, delay_s=deadline_s),
    ]
