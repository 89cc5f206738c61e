"""Whom a service's effects are for, and how they are reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from urllib.parse import quote

from shared.domain.errors import OnefoldError
from shared.topology.effect import Content

_PRINTABLE = "!\"#$&'()*+,-./:;<=>?@[]^_`{|}~"


class CallFailed(OnefoldError):
    """The call certainly had no effect. Whatever else `send` raises leaves open whether it had one.

    reason: for people; it is kept, so it quotes nothing that may be personal. final: a repeat would be useless.
    rest_s: for so long the target wants no calls at all.
    """

    def __init__(self, reason: str, *, final: bool = False, rest_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.rest_s = rest_s


@dataclass(frozen=True)
class Target(ABC):
    """Who is called. For what is neither Webhook nor Mail, a class of your own says how to `send`.

    name          as effects call it.
    repeats       whether it may get a call again of which it is unknown whether it had an effect: it knows a repeat by
                  its key, or a repeat does no harm. Otherwise such an effect is lost, until a person settles it.
    at_once       how many calls there may be at a time.
    timeout_s     how long a call may take: less than half of the service's `expires_s`.
    breaks_after  so many failures in a row, and each call waits for the one before and
    rests_s       so many seconds, until one has succeeded.
    """

    name: str
    _: KW_ONLY
    repeats: bool = True
    at_once: int = 10
    timeout_s: float = 15.0
    breaks_after: int = 5
    rests_s: float = 30.0

    @abstractmethod
    async def send(self, effect_id: str, content: Content) -> None:
        """Returns once the target has said that it has it. Raises CallFailed if it certainly has not."""


@dataclass(frozen=True)
class Effects:
    """The effects of a service, as EFFECTS in its `effects.py`.

    path     of their collection, such as `/notices`.
    targets  () -> its targets, made when the runner starts, as they have settings and secrets.
    """

    path: str
    targets: Callable[[], Sequence[Target]]


def key_of(effect_id: str) -> str:
    """The effect's id as a header may have it: the same, unless it has other characters than ASCII's."""
    return quote(effect_id, safe=_PRINTABLE)
