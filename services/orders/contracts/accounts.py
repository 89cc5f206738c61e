"""Accounts as orders sees it: the commands that it sends there, and the fields of the answers that it needs."""

from shared.domain import Command, Event


class ChargeOrder(Command):
    TYPE = "account.charge_order"

    order_id: str
    amount_cents: int


class RefundOrder(Command):
    TYPE = "account.refund_order"

    order_id: str


class SettleOrder(Command):
    TYPE = "account.settle_order"

    order_id: str


class OrderCharged(Event):
    TYPE = "account.order_charged"

    order_id: str


class ChargeRefused(Event):
    TYPE = "account.charge_refused"

    order_id: str
    code: str


AccountCommand = ChargeOrder | RefundOrder | SettleOrder
AccountAnswer = OrderCharged | ChargeRefused
