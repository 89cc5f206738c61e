"""The commands of an account. An amount may be any 64-bit int here; `decide` refuses one that is out of range.

A holder's name is encrypted before any of this sees it: it is passed on from the command to the event and to the row.
"""

from shared.domain import Command, Int64, Personal, Reference


class OpenAccount(Command):
    """A limit of None is no limit. holder: the customer's name."""

    TYPE = "account.open"

    holder: Personal = None
    order_limit_cents: Int64 | None = None
    credit_limit_cents: Int64 | None = None


class SetLimits(Command):
    """The most one order may cost, and the most the customer may owe; None removes a limit."""

    TYPE = "account.set_limits"

    order_limit_cents: Int64 | None
    credit_limit_cents: Int64 | None


class Charge(Command):
    """Add `amount_cents` to what the customer owes."""

    TYPE = "account.charge"

    amount_cents: Int64


class Pay(Command):
    """Take `amount_cents` off what the customer owes."""

    TYPE = "account.pay"

    amount_cents: Int64


class CloseAccount(Command):
    TYPE = "account.close"


class ChargeOrder(Command):
    """Hold `amount_cents` for an order until it is settled or refunded. Answered by an event, never refused."""

    TYPE = "account.charge_order"

    order_id: Reference
    amount_cents: Int64


class RefundOrder(Command):
    """Release what is held for the order, if anything is."""

    TYPE = "account.refund_order"

    order_id: Reference


class SettleOrder(Command):
    """Turn what is held for the order into what the customer owes."""

    TYPE = "account.settle_order"

    order_id: Reference


AccountCommand = OpenAccount | SetLimits | Charge | Pay | CloseAccount | ChargeOrder | RefundOrder | SettleOrder
