from __future__ import annotations

import hashlib
import lzma
from datetime import UTC, datetime
from pathlib import Path

import pytest

from demo.cdnow import MASTER, BadData, Purchase, balances, parse, read_purchases

HEADER = " customer_id  date number_of_cds  dollar_value"
LINE = " 00002 19970112  5   77.00"


@pytest.fixture(scope="module")
def purchases() -> list[Purchase]:
    return read_purchases()


def test_the_file_is_the_one_that_its_readme_names() -> None:
    digest = hashlib.sha256(lzma.decompress(MASTER.read_bytes())).hexdigest()
    assert digest in MASTER.with_name("README.md").read_text()


def test_every_line_is_a_purchase(purchases: list[Purchase]) -> None:
    assert len(purchases) == 69_659
    assert purchases[0] == Purchase(2, "00001", datetime(1997, 1, 1, tzinfo=UTC), 1, 1177)
    assert purchases[-1] == Purchase(69_660, "23570", datetime(1997, 3, 26, tzinfo=UTC), 2, 4296)


def test_the_sums_are_those_of_the_file(purchases: list[Purchase]) -> None:
    spent = balances(purchases)
    assert len(spent) == 23_570
    assert sum(spent.values()) == 2_500_315_63
    assert spent["07592"] == 13_990_93


def test_a_repeated_line_counts_twice() -> None:
    assert balances(parse([HEADER, LINE, LINE])) == {"00002": 154_00}


def test_cents_are_exact() -> None:
    lines = [f"00001 19970101 1 {cents // 100}.{cents % 100:02}" for cents in range(10_000)]
    assert [purchase.amount_cents for purchase in parse([HEADER, *lines])] == list(range(10_000))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "0 fields instead of 4"),
        (" 00002 19970112  5", "3 fields instead of 4"),
        (LINE + " 1", "5 fields instead of 4"),
        (" 0002 19970112  5   77.00", "'0002' is not a customer of five digits"),
        (" 0000x 19970112  5   77.00", "'0000x' is not a customer of five digits"),
        (" ٠٠٠٠٢ 19970112  5   77.00", "'٠٠٠٠٢' is not a customer of five digits"),
        (" 00002 19970229  5   77.00", "'19970229' is not a date as YYYYMMDD"),
        (" 00002 1997-1-12  5   77.00", "'1997-1-12' is not a date as YYYYMMDD"),
        (" 00002 19970112  0   77.00", "'0' is not a number of CDs from 1 to 9999"),
        (" 00002 19970112  1.5   77.00", "'1.5' is not a number of CDs from 1 to 9999"),
        (" 00002 19970112  5   77", "'77' is not an amount of dollars and cents"),
        (" 00002 19970112  5   77.001", "'77.001' is not an amount of dollars and cents"),
        (" 00002 19970112  5   -77.00", "'-77.00' is not an amount of dollars and cents"),
        (" 00002 19970112  5   7.7E1", "'7.7E1' is not an amount of dollars and cents"),
        (" 00002 19970112  5   NaN", "'NaN' is not an amount of dollars and cents"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(BadData) as refused:
        parse([HEADER, LINE, line, LINE])
    assert str(refused.value) == f"line 3: {problem}"


@pytest.mark.parametrize("lines", [[], [LINE], ["customer date cds dollars", LINE]])
def test_a_file_without_its_header_is_refused(lines: list[str]) -> None:
    with pytest.raises(BadData, match="line 1: the header is"):
        parse(lines)


@pytest.mark.parametrize("content", [b"", MASTER.read_bytes()[:1000], b"no xz", lzma.compress("é".encode())])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.xz"
    damaged.write_bytes(content)
    with pytest.raises(BadData):
        read_purchases(damaged)
