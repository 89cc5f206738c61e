"""Turns older versions of its messages into the current ones."""

import re
from typing import Any

from shared.domain import Upcasters

_DOLLARS = re.compile(r"([0-9]{1,7})\.([0-9]{2})")


def charged_v2(data: dict[str, Any]) -> dict[str, Any]:
    """{"amount": "29.99"} in dollars becomes {"amount_cents": 2999}."""
    amount = _DOLLARS.fullmatch(data["amount"])
    if amount is None:
        raise ValueError("amount: not dollars and cents")
    dollars, cents = amount.groups()
    return {"amount_cents": int(dollars) * 100 + int(cents)}


UPCASTERS: Upcasters = {("account.charged", 1): charged_v2}
