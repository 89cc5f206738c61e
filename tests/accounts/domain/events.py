"""The events of an account. Amounts are int cents, at least 1."""

from shared.domain import Event, Personal


class AccountOpened(Event):
    TYPE = "account.opened"

    holder: Personal = None
    order_limit_cents: int | None = None


class AccountCharged(Event):
    """Version 1 had `amount`, in dollars."""

    TYPE = "account.charged"
    VERSION = 2

    amount_cents: int


class PaymentReceived(Event):
    TYPE = "account.payment_received"

    amount_cents: int


class AccountClosed(Event):
    TYPE = "account.closed"


AccountEvent = AccountOpened | AccountCharged | PaymentReceived | AccountClosed
