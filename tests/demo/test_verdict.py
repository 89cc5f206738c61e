from __future__ import annotations

from demo.verdict import Tables, judge


def test_equal_books_are_ok() -> None:
    books: Tables = {"accounts": {"00001": 1177, "00002": 8900}, "orders": {"cdnow-2": "confirmed"}}
    verdict = judge(books, books)
    assert verdict.agrees
    assert verdict.line == "verdict: ok 2 of 2 accounts agree"


def test_a_cent_too_much_fails() -> None:
    verdict = judge({"accounts": {"00001": 1177, "00002": 8900}}, {"accounts": {"00001": 1178, "00002": 8900}})
    assert not verdict.agrees
    assert verdict.line == "verdict: FAILED 1 of 2 accounts differ: 00001 has 1178 where the file says 1177"


def test_a_missing_account_fails_even_if_it_owes_nothing_and_so_does_an_extra_one() -> None:
    assert judge({"accounts": {"00001": 0}}, {"accounts": {}}).line.endswith("00001 has None where the file says 0")
    assert judge({"accounts": {}}, {"accounts": {"00001": 0}}).line.endswith("00001 has 0 where the file says None")


def test_every_differing_table_is_reported_with_its_first_differences() -> None:
    expected = {"accounts": {str(number): 1 for number in range(9)}, "days": {"1997-01-01": 1}}
    line = judge(expected, {"accounts": dict.fromkeys(expected["accounts"], 2), "days": {}}).line
    assert line.count("has 2 where") == 3
    assert " and 6 more; 1 of 1 days differ: 1997-01-01 has None" in line


def test_any_other_problem_fails_too() -> None:
    assert judge({"accounts": {}}, {"accounts": {}}, ["Spark DIFFERS"]).line == "verdict: FAILED Spark DIFFERS"
