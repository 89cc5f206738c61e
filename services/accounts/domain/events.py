"""What can have happened to an account. Amounts are int cents, greater than 0."""

from shared.es.message import Event


class AccountOpened(Event):
    TYPE = "account.opened"


class AccountCharged(Event):
    """The customer owes `amount_cents` more. Version 1 had `amount`, in dollars."""

    TYPE = "account.charged"
    VERSION = 2

    amount_cents: int


class PaymentReceived(Event):
    """The customer owes `amount_cents` less."""

    TYPE = "account.payment_received"

    amount_cents: int


class AccountClosed(Event):
    TYPE = "account.closed"


AccountEvent = AccountOpened | AccountCharged | PaymentReceived | AccountClosed
