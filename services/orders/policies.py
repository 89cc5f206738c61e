"""The process of an order: which commands follow from each event. Policies keep no state; the order is the memory.

Other services get a reference, `orders:o-1`, and answer with it, which tells answers to orders from answers to others.
"""

import json
from datetime import datetime
from typing import assert_never, get_args

from services.orders.contracts.accounts import (
    AccountAnswer,
    AccountCommand,
    ChargeOrder,
    ChargeRefused,
    OrderCharged,
    RefundOrder,
    SettleOrder,
)
from services.orders.contracts.inventory import (
    InventoryAnswer,
    InventoryCommand,
    ReleaseStock,
    ReservationRefused,
    ReserveStock,
    ShipStock,
    StockReserved,
)
from services.orders.contracts.pickups import RequestPickup
from services.orders.domain.commands import (
    CheckDeadline,
    RecordCharge,
    RecordRefusedCharge,
    RecordRefusedReservation,
    RecordReservation,
)
from services.orders.domain.events import (
    ChargeOverdue,
    Line,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderEvent,
    OrderPlaced,
    OrderRejected,
    ReservationOverdue,
)
from services.orders.topology import (
    ACCOUNTS_COMMANDS,
    ACCOUNTS_EVENTS,
    COMMANDS,
    EVENTS,
    INVENTORY_COMMANDS,
    INVENTORY_EVENTS,
    PICKUPS_COMMANDS,
    TIMERS,
    TOPOLOGY,
)
from shared.domain import Command, EventEnvelope, Reference, reference, referenced
from shared.topology import Policy, Send

BY_COURIER_CENTS = 150_00
"""What an order costs at least for a courier to be called."""

NEXT_STEP_SENDS = {
    INVENTORY_COMMANDS: get_args(InventoryCommand),
    ACCOUNTS_COMMANDS: get_args(AccountCommand),
    PICKUPS_COMMANDS: (RequestPickup,),
    TIMERS: (CheckDeadline,),
}
INVENTORY_ANSWER_SENDS = {COMMANDS: (RecordReservation, RecordRefusedReservation)}
ACCOUNT_ANSWER_SENDS = {COMMANDS: (RecordCharge, RecordRefusedCharge)}


def next_step(event: EventEnvelope[OrderEvent]) -> list[Send]:
    """Ask for the next step; at the end, ship, settle and call a courier, or give back."""
    order_id, data = event.aggregate_id, event.data
    order_ref = reference(TOPOLOGY.service, order_id)
    match data:
        case OrderPlaced():
            return [*_reserve(order_ref, data.lines, data.placed_at), _deadline(order_id, attempt=1)]
        case ReservationOverdue():
            return [*_reserve(order_ref, data.lines, data.placed_at), _deadline(order_id, data.attempt)]
        case LineReserved(asked=()):
            return [_charge(order_ref, data.customer_id, data.total_cents)]
        case LineReserved():
            return []
        case ChargeOverdue():
            return [_charge(order_ref, data.customer_id, data.total_cents), _deadline(order_id, data.attempt)]
        case OrderConfirmed():
            ships = [Send(INVENTORY_COMMANDS, line.sku, ShipStock(order_id=order_ref)) for line in data.lines]
            settles = Send(ACCOUNTS_COMMANDS, data.customer_id, SettleOrder(order_id=order_ref))
            return [*ships, settles, *_pickups(order_ref, order_id, data.lines)]
        case OrderRejected() | OrderCancelled():
            releases = [Send(INVENTORY_COMMANDS, sku, ReleaseStock(order_id=order_ref)) for sku in data.reserved]
            refund = Send(ACCOUNTS_COMMANDS, data.customer_id, RefundOrder(order_id=order_ref))
            return [*releases, refund] if data.charged else releases
        case _:
            assert_never(data)


def record_inventory(event: EventEnvelope[InventoryAnswer]) -> list[Send]:
    """Tell the order what inventory answered for one of its SKUs."""
    sku = event.aggregate_id
    match event.data:
        case StockReserved(order_id=order_ref):
            return _record(order_ref, RecordReservation(sku=sku))
        case ReservationRefused(order_id=order_ref, code=code):
            return _record(order_ref, RecordRefusedReservation(sku=sku, code=code))
        case _:
            assert_never(event.data)


def record_account(event: EventEnvelope[AccountAnswer]) -> list[Send]:
    """Tell the order what accounts answered."""
    match event.data:
        case OrderCharged(order_id=order_ref):
            return _record(order_ref, RecordCharge())
        case ChargeRefused(order_id=order_ref, code=code):
            return _record(order_ref, RecordRefusedCharge(code=code))
        case _:
            assert_never(event.data)


def _record(order_ref: Reference, command: Command) -> list[Send]:
    """Empty when the answer is to another service's process."""
    order_id = referenced(TOPOLOGY.service, order_ref)
    return [] if order_id is None else [Send(COMMANDS, order_id, command)]


def _reserve(order_ref: Reference, lines: tuple[Line, ...], placed_at: datetime) -> list[Send]:
    day = placed_at.date()
    return [
        Send(INVENTORY_COMMANDS, line.sku, ReserveStock(order_id=order_ref, quantity=line.quantity, ordered_on=day))
        for line in lines
    ]


def _charge(order_ref: Reference, customer_id: str, total_cents: int) -> Send:
    return Send(ACCOUNTS_COMMANDS, customer_id, ChargeOrder(order_id=order_ref, amount_cents=total_cents))


def _pickups(order_ref: Reference, order_id: str, lines: tuple[Line, ...]) -> list[Send]:
    """The effect's id is that of the order: one call outside, however often this runs."""
    if sum(line.amount_cents for line in lines) < BY_COURIER_CENTS:
        return []
    body = json.dumps({"type": "order.confirmed", "data": {"order_id": order_id}})
    return [Send(PICKUPS_COMMANDS, order_ref, RequestPickup(target="courier", body=body))]


def _deadline(order_id: str, attempt: int) -> Send:
    return Send(TIMERS, order_id, CheckDeadline(attempt=attempt))


POLICIES = (
    Policy(next_step, source=EVENTS, events=get_args(OrderEvent), commands=NEXT_STEP_SENDS, from_start=True),
    Policy(
        record_inventory,
        source=INVENTORY_EVENTS,
        events=get_args(InventoryAnswer),
        commands=INVENTORY_ANSWER_SENDS,
        from_start=True,
    ),
    Policy(
        record_account,
        source=ACCOUNTS_EVENTS,
        events=get_args(AccountAnswer),
        commands=ACCOUNT_ANSWER_SENDS,
        from_start=True,
    ),
)
"""From the start: an answer may come before the partition that it is in has its first worker."""
