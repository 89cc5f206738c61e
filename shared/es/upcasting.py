"""Old messages read as new ones: events are for ever, their shapes are not."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shared.es.errors import BadMessage
from shared.es.message import Message

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""The `data` of one version as the next version has it. Its input is not validated yet."""

Upcasters = Mapping[tuple[str, int], Upcaster]
"""(type, version) → the upcaster from that version to the next."""

MALFORMED_DATA = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What an upcaster raises when its input is not of the version it says it is."""


def check_upcasters(messages: Iterable[type[Message]], upcasters: Upcasters) -> None:
    """Raises ValueError unless every older version has exactly the one upcaster that leads on from it."""
    needed = {(message.TYPE, version) for message in messages for version in range(1, message.VERSION)}
    if missing := needed - upcasters.keys():
        raise ValueError(f"no upcaster for {sorted(missing)}")
    if unused := upcasters.keys() - needed:
        raise ValueError(f"upcaster leads to no declared version: {sorted(unused)}")


def upcast(name: str, version: int, current: int, data: dict[str, Any], upcasters: Upcasters) -> dict[str, Any]:
    """`data` as version `current` has it. Raises BadMessage."""
    for older in range(version, current):
        try:
            data = upcasters[name, older](data)
        except MALFORMED_DATA as error:
            raise BadMessage(f"not version {older} of {name}: {type(error).__name__}") from error
    return data
