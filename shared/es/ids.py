"""Identifiers: which aggregate ids are legal, and ids that a replay computes again."""

import re
from hashlib import sha1
from typing import Annotated

from pydantic import AfterValidator, Field

from shared.es.errors import BadMessage

AGGREGATE_ID_MAX_BYTES = 128

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_aggregate_id(text: str) -> str:
    """`text`, if it is 1 to 128 bytes of UTF-8 without control characters. Raises ValueError."""
    if not text:
        raise ValueError("an aggregate id cannot be empty")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("an aggregate id must be valid UTF-8") from None
    if size_bytes > AGGREGATE_ID_MAX_BYTES:
        raise ValueError(f"an aggregate id has at most {AGGREGATE_ID_MAX_BYTES} bytes, this one {size_bytes}")
    if _CONTROL_CHARACTER.search(text):
        raise ValueError("an aggregate id cannot contain control characters")
    return text


AggregateId = Annotated[str, AfterValidator(check_aggregate_id)]
MessageId = Annotated[str, Field(min_length=1, max_length=128)]


def aggregate_id_of(key: bytes | None) -> str:
    """The aggregate id a record's key holds. Raises BadMessage."""
    if key is None:
        raise BadMessage("no key")
    try:
        return check_aggregate_id(key.decode())
    except UnicodeDecodeError:
        raise BadMessage("key: not UTF-8") from None
    except ValueError as error:
        raise BadMessage(f"key: {error}") from None


def derived_id(*parts: str) -> str:
    """The same UUID (version 5 layout) for the same `parts`, whoever computes it and however often."""
    name = "".join([f"{len(part)}:{part}" for part in parts])
    digits = sha1(name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
