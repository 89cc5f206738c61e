"""Identifiers: which aggregate ids are legal, and ids that a replay computes again."""

import re
from hashlib import sha1
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import to_json

AGGREGATE_ID_MAX_BYTES = 128
DOT_SEGMENTS = (".", "..")

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_aggregate_id(text: str) -> str:
    """`text`, if it is 1 to 128 bytes of UTF-8 without control characters, and not a dot or two. Raises ValueError."""
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
    if text in DOT_SEGMENTS:
        raise ValueError(f"an aggregate id cannot be {text!r}: clients take it out of a URL")
    return text


AggregateId = Annotated[str, AfterValidator(check_aggregate_id)]
MessageId = Annotated[str, Field(min_length=1, max_length=128)]


def derived_id(*parts: str) -> str:
    """The same UUID, laid out as version 5, for the same `parts`, whoever computes it and however often."""
    digits = sha1(to_json(parts), usedforsecurity=False).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-5{digits[12:15]}-8{digits[15:18]}-{digits[18:30]}"
