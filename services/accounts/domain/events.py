"""The events of an account. Amounts are int cents, at least 1; an order's amount may be 0."""

from shared.domain import Event, Personal


class AccountOpened(Event):
    """A limit of None is no limit."""

    TYPE = "account.opened"

    holder: Personal = None
    order_limit_cents: int | None = None
    credit_limit_cents: int | None = None


class LimitsSet(Event):
    """None: no limit."""

    TYPE = "account.limits_set"

    order_limit_cents: int | None
    credit_limit_cents: int | None


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


class OrderCharged(Event):
    """The answer to ChargeOrder: the amount is held, and counts against the credit limit."""

    TYPE = "account.order_charged"

    order_id: str
    amount_cents: int


class ChargeRefused(Event):
    """The answer to ChargeOrder: nothing is held, and `code` says why."""

    TYPE = "account.charge_refused"

    order_id: str
    amount_cents: int
    code: str


class OrderRefunded(Event):
    """The amount is no longer held."""

    TYPE = "account.order_refunded"

    order_id: str
    amount_cents: int


class OrderSettled(Event):
    """The amount is no longer held: the customer owes it."""

    TYPE = "account.order_settled"

    order_id: str
    amount_cents: int


AccountEvent = (
    AccountOpened
    | LimitsSet
    | AccountCharged
    | PaymentReceived
    | AccountClosed
    | OrderCharged
    | ChargeRefused
    | OrderRefunded
    | OrderSettled
)
