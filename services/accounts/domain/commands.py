"""What can be asked of an account. Here an amount is any int; whether it is a sensible one, `decide` says."""

from shared.es.message import Command


class OpenAccount(Command):
    TYPE = "account.open"


class Charge(Command):
    """Add `amount_cents` to what the customer owes."""

    TYPE = "account.charge"

    amount_cents: int


class Pay(Command):
    """Take `amount_cents` off what the customer owes."""

    TYPE = "account.pay"

    amount_cents: int


class CloseAccount(Command):
    TYPE = "account.close"


AccountCommand = OpenAccount | Charge | Pay | CloseAccount
