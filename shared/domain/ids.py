"""Identifiers: which aggregate ids are legal, and derived ids that come out the same in every replay."""

import re
from functools import lru_cache
from hashlib import sha1
from typing import Annotated

from msgspec import Meta
from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import to_json

AGGREGATE_ID_MAX_BYTES = 128
REFERENCE_MAX_BYTES = 192
MESSAGE_ID_MAX_CHARS = 128
DOT_SEGMENTS = (".", "..")

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@lru_cache(16_384)  # asked several times for each command
def check_aggregate_id(text: str) -> str:
    """`text`, if it is 1 to 128 bytes of UTF-8 without control characters, but not "." or "..". Raises ValueError."""
    _check("an aggregate id", text, AGGREGATE_ID_MAX_BYTES)
    if text in DOT_SEGMENTS:
        raise ValueError(f"an aggregate id cannot be {text!r}: clients remove that from a URL")
    return text


def check_reference(text: str) -> str:
    """`text`, if it is 1 to 192 bytes of UTF-8 without control characters. Raises ValueError."""
    _check("a reference", text, REFERENCE_MAX_BYTES)
    return text


def check_message_id(text: str) -> str:
    """`text`, if it is 1 to 128 characters. Raises ValueError."""
    if not 1 <= len(text) <= MESSAGE_ID_MAX_CHARS:
        raise ValueError(f"a message id has 1 to {MESSAGE_ID_MAX_CHARS} characters, this one {len(text)}")
    return text


def _check(what: str, text: str, max_bytes: int) -> None:
    if text.isascii() and text.isprintable() and 0 < len(text) <= max_bytes:
        return  # as nearly all are, in a third of the time
    if not text:
        raise ValueError(f"{what} cannot be empty")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be valid UTF-8") from None
    if size_bytes > max_bytes:
        raise ValueError(f"{what} has at most {max_bytes} bytes, this one {size_bytes}")
    if _CONTROL_CHARACTER.search(text):
        raise ValueError(f"{what} cannot contain control characters")


# For request generators: a JSON schema counts characters, and any 32 of them fit the limit in bytes.
_SCHEMA = {"type": "string", "pattern": r"^([ -~]{1,128}|[^\x00-\x1f\x7f-\x9f]{1,32})$"}

AggregateId = Annotated[
    str, AfterValidator(check_aggregate_id), WithJsonSchema(_SCHEMA), Meta(extra_json_schema=_SCHEMA)
]
"""Text that becomes the id of an aggregate: 1 to 128 bytes of UTF-8 without control characters, but not "." or ".."."""

MessageId = Annotated[str, Meta(min_length=1, max_length=MESSAGE_ID_MAX_CHARS)]
Reference = Annotated[str, AfterValidator(check_reference)]
"""How services name each other's aggregates, `accounts:a-1`, since two services may use the same ids.

It is 1 to 192 bytes of UTF-8 without control characters.
"""


def reference(service: str, aggregate_id: str) -> Reference:
    """The reference to the service's aggregate with this `aggregate_id`: `accounts:a-1`. It checks neither text."""
    return f"{service}:{aggregate_id}"


def referenced(service: str, text: Reference) -> str | None:
    """The aggregate id in the reference; None for a reference to another service, or for text that is none."""
    owner, found, aggregate_id = text.partition(":")
    return aggregate_id if found and owner == service else None


CALLERS = "http-"
"""The ids of commands over HTTP begin so. Those of policies are bare UUIDs, so no caller can use up one of them."""


def callers_id(subject: str, key: str) -> str:
    """The id of the command that a caller sends with this Idempotency-Key. subject: "" for one without a token."""
    return CALLERS + derived_id(subject, key)


def derived_id(*parts: str) -> str:
    """A UUID, laid out as version 5, that is always the same for the same `parts`."""
    digits = sha1(to_json(parts), usedforsecurity=False).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-5{digits[12:15]}-8{digits[15:18]}-{digits[18:30]}"
