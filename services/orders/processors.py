"""The pure parts of orders bound to their topics."""

from __future__ import annotations

from typing import get_args

from services.orders.domain.accounts import AccountAnswer
from services.orders.domain.decide import DECIDER
from services.orders.domain.events import OrderEvent
from services.orders.domain.inventory import InventoryAnswer
from services.orders.policies import (
    ACCOUNT_ANSWER_SENDS,
    INVENTORY_ANSWER_SENDS,
    NEXT_STEP_SENDS,
    next_step,
    record_account,
    record_inventory,
)
from services.orders.topology import ACCOUNTS_EVENTS, COMMANDS, EVENTS, INVENTORY_EVENTS, ORDERS, TIMERS
from shared.streams.processors import Aggregate, Delay, Policy, Processor


def processors(deadline_s: float) -> list[Processor]:
    """deadline_s: how long an order waits for its answers before it asks again."""
    return [
        Aggregate(DECIDER, table=ORDERS, events=EVENTS),
        Policy(next_step, source=EVENTS, events=get_args(OrderEvent), commands=NEXT_STEP_SENDS),
        Policy(
            record_inventory,
            source=INVENTORY_EVENTS,
            events=get_args(InventoryAnswer),
            commands=INVENTORY_ANSWER_SENDS,
        ),
        Policy(record_account, source=ACCOUNTS_EVENTS, events=get_args(AccountAnswer), commands=ACCOUNT_ANSWER_SENDS),
        Delay(source=TIMERS, target=COMMANDS, delay_s=deadline_s),
    ]
