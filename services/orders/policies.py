"""The process of an order: what each event asks of whom. Nothing is kept here; the order itself is the memory.

Neighbours know an order by a reference and answer with it, so that of all their answers only those to us are heard.
"""

from datetime import datetime
from typing import assert_never, get_args

from services.orders.domain.accounts import (
    AccountAnswer,
    AccountCommand,
    ChargeOrder,
    ChargeRefused,
    OrderCharged,
    RefundOrder,
    SettleOrder,
)
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
from services.orders.domain.inventory import (
    InventoryAnswer,
    InventoryCommand,
    ReleaseStock,
    ReservationRefused,
    ReserveStock,
    ShipStock,
    StockReserved,
)
from services.orders.topology import (
    ACCOUNTS_COMMANDS,
    ACCOUNTS_EVENTS,
    COMMANDS,
    EVENTS,
    INVENTORY_COMMANDS,
    INVENTORY_EVENTS,
    TIMERS,
    TOPOLOGY,
)
from shared.es.envelope import EventEnvelope
from shared.es.ids import Reference, reference, referenced
from shared.es.message import Command
from shared.policy import Reaction, Send

NEXT_STEP_SENDS = {
    INVENTORY_COMMANDS: get_args(InventoryCommand),
    ACCOUNTS_COMMANDS: get_args(AccountCommand),
    TIMERS: (CheckDeadline,),
}
INVENTORY_ANSWER_SENDS = {COMMANDS: (RecordReservation, RecordRefusedReservation)}
ACCOUNT_ANSWER_SENDS = {COMMANDS: (RecordCharge, RecordRefusedCharge)}


def next_step(event: EventEnvelope[OrderEvent]) -> list[Send]:
    """Ask for the next step, or at the end ship and settle, or give back."""
    order_id, data = event.aggregate_id, event.data
    ours = reference(TOPOLOGY.service, order_id)
    match data:
        case OrderPlaced():
            return [*_reserve(ours, data.lines, data.placed_at), _deadline(order_id, attempt=1)]
        case ReservationOverdue():
            return [*_reserve(ours, data.lines, data.placed_at), _deadline(order_id, data.attempt)]
        case LineReserved(asked=()):
            return [_charge(ours, data.customer_id, data.total_cents)]
        case LineReserved():
            return []
        case ChargeOverdue():
            return [_charge(ours, data.customer_id, data.total_cents), _deadline(order_id, data.attempt)]
        case OrderConfirmed():
            ships = [Send(INVENTORY_COMMANDS, line.sku, ShipStock(order_id=ours)) for line in data.lines]
            return [*ships, Send(ACCOUNTS_COMMANDS, data.customer_id, SettleOrder(order_id=ours))]
        case OrderRejected() | OrderCancelled():
            releases = [Send(INVENTORY_COMMANDS, sku, ReleaseStock(order_id=ours)) for sku in data.reserved]
            refund = Send(ACCOUNTS_COMMANDS, data.customer_id, RefundOrder(order_id=ours))
            return [*releases, refund] if data.charged else releases
        case _:
            assert_never(data)


def record_inventory(event: EventEnvelope[InventoryAnswer]) -> list[Send]:
    """Tell the order what inventory answered for one of its SKUs."""
    sku = event.aggregate_id
    match event.data:
        case StockReserved(order_id=answered):
            return _record(answered, RecordReservation(sku=sku))
        case ReservationRefused(order_id=answered, code=code):
            return _record(answered, RecordRefusedReservation(sku=sku, code=code))
        case _:
            assert_never(event.data)


def record_account(event: EventEnvelope[AccountAnswer]) -> list[Send]:
    """Tell the order what accounts answered."""
    match event.data:
        case OrderCharged(order_id=answered):
            return _record(answered, RecordCharge())
        case ChargeRefused(order_id=answered, code=code):
            return _record(answered, RecordRefusedCharge(code=code))
        case _:
            assert_never(event.data)


def _record(answered: Reference, command: Command) -> list[Send]:
    """Nothing for the answer to another service's process."""
    order_id = referenced(TOPOLOGY.service, answered)
    return [] if order_id is None else [Send(COMMANDS, order_id, command)]


def _reserve(ours: Reference, lines: tuple[Line, ...], placed_at: datetime) -> list[Send]:
    day = placed_at.date()
    return [
        Send(INVENTORY_COMMANDS, line.sku, ReserveStock(order_id=ours, quantity=line.quantity, ordered_on=day))
        for line in lines
    ]


def _charge(ours: Reference, customer_id: str, total_cents: int) -> Send:
    return Send(ACCOUNTS_COMMANDS, customer_id, ChargeOrder(order_id=ours, amount_cents=total_cents))


def _deadline(order_id: str, attempt: int) -> Send:
    return Send(TIMERS, order_id, CheckDeadline(attempt=attempt))


REACTIONS = (
    Reaction(next_step, source=EVENTS, events=get_args(OrderEvent), commands=NEXT_STEP_SENDS),
    Reaction(
        record_inventory, source=INVENTORY_EVENTS, events=get_args(InventoryAnswer), commands=INVENTORY_ANSWER_SENDS
    ),
    Reaction(record_account, source=ACCOUNTS_EVENTS, events=get_args(AccountAnswer), commands=ACCOUNT_ANSWER_SENDS),
)
