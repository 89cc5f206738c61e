"""The commands of an account. An amount may be any 64-bit int here; `decide` refuses one that is out of range."""

from shared.domain import Command, Int64, Personal


class OpenAccount(Command):
    TYPE = "account.open"

    holder: Personal = None
    order_limit_cents: Int64 | None = None


class Charge(Command):
    """Add `amount_cents` to the balance."""

    TYPE = "account.charge"

    amount_cents: Int64


class Pay(Command):
    """Take `amount_cents` off the balance."""

    TYPE = "account.pay"

    amount_cents: Int64


class CloseAccount(Command):
    TYPE = "account.close"


AccountCommand = OpenAccount | Charge | Pay | CloseAccount
