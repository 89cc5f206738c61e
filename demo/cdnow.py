"""The CDNOW purchases: what the file says and what it adds up to, without any service code."""

from __future__ import annotations

import lzma
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

MASTER = Path(__file__).parent / "data" / "CDNOW_master.txt.xz"

_HEADER = ["customer_id", "date", "number_of_cds", "dollar_value"]


class BadData(ValueError):
    """The file is not as it should be. The message names the line; the header is line 1."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """One line of the file. date: the start of the day, UTC."""

    line: int
    customer: str
    date: datetime
    cds: int
    amount_cents: int


def read_purchases(file: Path = MASTER) -> list[Purchase]:
    """Every purchase of an xz-compressed file, in the order of its lines. Raises BadData, OSError."""
    try:
        lines = lzma.decompress(file.read_bytes()).decode("ascii").splitlines()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise BadData(f"{file.name} is damaged: {error}") from error
    return parse(lines)


def first_purchases(limit: int | None) -> list[Purchase]:
    """The first `limit` purchases, or all, in the order they happened. Raises BadData, OSError."""
    return sorted(read_purchases(), key=lambda purchase: purchase.date)[:limit]


def parse(lines: Sequence[str]) -> list[Purchase]:
    """The purchases below the header. Raises BadData."""
    header = lines[0] if lines else ""
    if header.split() != _HEADER:
        raise BadData(f"line 1: the header is {header.strip()!r} instead of {' '.join(_HEADER)!r}")
    return [_purchase(number, line) for number, line in enumerate(lines[1:], start=2)]


def balances(purchases: Iterable[Purchase]) -> dict[str, int]:
    """What every customer spent, in cents."""
    spent: Counter[str] = Counter()
    for purchase in purchases:
        spent[purchase.customer] += purchase.amount_cents
    return dict(spent)


def _purchase(number: int, line: str) -> Purchase:
    fields = line.split()
    if len(fields) != len(_HEADER):
        raise BadData(f"line {number}: {len(fields)} fields instead of {len(_HEADER)}")
    customer, day, cds, dollars = fields
    try:
        return Purchase(number, _customer(customer), _date(day), _count(cds), _cents(dollars))
    except ValueError as error:
        raise BadData(f"line {number}: {error}") from None


def _customer(text: str) -> str:
    return _matching("[0-9]{5}", text, "a customer of five digits")


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(_matching("[0-9]{8}", text, "a date")).replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"{text!r} is not a date as YYYYMMDD") from None


def _count(text: str) -> int:
    return int(_matching("[1-9][0-9]{0,3}", text, "a number of CDs from 1 to 9999"))


def _cents(text: str) -> int:
    return int(Decimal(_matching("[0-9]{1,7}[.][0-9]{2}", text, "an amount of dollars and cents")) * 100)


def _matching(pattern: str, text: str, what: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{text!r} is not {what}")
    return text
