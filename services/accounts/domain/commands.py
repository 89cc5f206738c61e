"""What can be asked of an account. Here an amount is any 64-bit int; if it is a sensible one, `decide` says."""

from typing import Annotated

from pydantic import Field

from shared.es.message import Command

Cents = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class OpenAccount(Command):
    TYPE = "account.open"


class Charge(Command):
    """Add `amount_cents` to what the customer owes."""

    TYPE = "account.charge"

    amount_cents: Cents


class Pay(Command):
    """Take `amount_cents` off what the customer owes."""

    TYPE = "account.pay"

    amount_cents: Cents


class CloseAccount(Command):
    TYPE = "account.close"


AccountCommand = OpenAccount | Charge | Pay | CloseAccount
