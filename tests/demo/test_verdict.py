from demo.verdict import judge


def test_equal_balances_are_ok() -> None:
    verdict = judge({"00001": 1177, "00002": 8900}, {"00001": 1177, "00002": 8900, "99999": 1})
    assert verdict.agrees
    assert verdict.line == "verdict: ok 2 of 2 accounts agree"


def test_a_cent_too_much_fails() -> None:
    verdict = judge({"00001": 1177, "00002": 8900}, {"00001": 1178, "00002": 8900})
    assert not verdict.agrees
    assert verdict.line == "verdict: FAILED 1 of 2 accounts differ: 00001 has 1178 cents, the file says 1177"


def test_a_missing_account_fails_even_where_nothing_is_owed() -> None:
    assert judge({"00001": 0}, {}).line.endswith("differ: 00001 is not there, the file says 0")


def test_the_first_differences_are_named_and_the_others_counted() -> None:
    expected = {str(account): 1 for account in range(9)}
    line = judge(expected, dict.fromkeys(expected, 2)).line
    assert line.count("has 2 cents") == 3
    assert line.endswith("; 6 more")
