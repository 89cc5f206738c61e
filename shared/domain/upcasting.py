"""Old messages read as new ones: events are kept for ever, but their shape changes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shared.domain.errors import BadMessage
from shared.domain.message import Message

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the `data` of one version, a dict of JSON values, into that of the next. Its input is not validated yet.

It may raise any of MALFORMED_DATA for a dict that does not have the shape of its version: the record is then parked as
`message.bad`. A number with a fraction is a float in it: make a Decimal of that with Decimal(str(x)).
"""

Upcasters = Mapping[tuple[str, int], Upcaster]
"""By the TYPE of a message and the older version, as in `{("account.opened", 1): with_limits}`: the upcaster from that
version to the next. Each version before the current one needs exactly one, or in a reader each before its SAME_SINCE.
"""

MALFORMED_DATA = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What an upcaster raises when its input does not have the shape of its declared version."""


def check_upcasters(messages: Iterable[type[Message]], upcasters: Upcasters) -> None:
    """Raises ValueError unless every version that needs an upcaster has exactly one, to the next version."""
    needed = {(message.TYPE, version) for message in messages for version in range(1, message.same_since())}
    if missing := needed - upcasters.keys():
        raise ValueError(f"no upcaster for {sorted(missing)}: give it in upcasters=")
    if unused := upcasters.keys() - needed:
        raise ValueError(
            f"upcasters of versions that no message declared here has had: {sorted(unused)}: correct the type or the "
            "version, raise the VERSION of the message, or give them only to the readers that declare it"
        )


def upcast(name: str, version: int, current: int, data: dict[str, Any], upcasters: Upcasters) -> dict[str, Any]:
    """`data` upcast to version `current`. Raises BadMessage."""
    for older in range(version, current):
        try:
            data = upcasters[name, older](data)
        except MALFORMED_DATA as error:
            raise BadMessage(f"not version {older} of {name}: {type(error).__name__}") from error
    return data
