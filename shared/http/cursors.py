"""Where a list's next page begins: an order and a place in it, the same to all workers of all releases.

A place names a row. Whoever may only see its own rows gets a place sealed, as a page may end at another's.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode

from cryptography.fernet import Fernet, InvalidToken

from shared.http.scans import SortKey

_SEALED = "gAAAA"  # Fernet's version and time; no order begins like this
_PURPOSE = b"cursors of lists of own rows"


def encode_cursor(order: str, place: SortKey) -> str:
    return urlsafe_b64encode(b"\x00".join((order.encode(), *place))).decode()


def decode_cursor(text: str) -> tuple[str, SortKey]:
    """The order and place that `encode_cursor` was given. Raises ValueError."""
    try:
        order, _, place = b64decode(text.encode(), altchars=b"-_", validate=True).partition(b"\x00")
        value, key = place.rsplit(b"\x00", 1)  # a key has no control characters
        return order.decode(), (value, key)
    except ValueError as error:
        raise ValueError("not a cursor of a list") from error


def is_sealed(cursor: str) -> bool:
    return cursor.startswith(_SEALED)


class Seal:
    """Makes cursors that tell only the service's workers where they are."""

    def __init__(self, secret: str) -> None:
        """secret: the workers'."""
        self._fernet = Fernet(urlsafe_b64encode(hmac.digest(secret.encode(), _PURPOSE, "sha256")))

    def sealed(self, cursor: str) -> str:
        return self._fernet.encrypt(urlsafe_b64decode(cursor)).decode()

    def opened(self, cursor: str) -> str:
        """Raises ValueError for one that was not sealed with the same secret."""
        try:
            return urlsafe_b64encode(self._fernet.decrypt(cursor)).decode()
        except InvalidToken as error:
            raise ValueError("not a cursor of a list") from error
