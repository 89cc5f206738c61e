"""What the workers answered against what the file adds up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether every account agrees, and the line that says so."""

    agrees: bool
    line: str


def judge(expected: Mapping[str, int], found: Mapping[str, int]) -> Verdict:
    """expected, found: cents by account."""
    wrong = [account for account, cents in expected.items() if found.get(account) != cents]
    if not wrong:
        return Verdict(True, f"verdict: ok {len(expected)} of {len(expected)} accounts agree")
    named = "; ".join(_difference(account, expected[account], found.get(account)) for account in wrong[:_NAMED])
    more = f"; {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return Verdict(False, f"verdict: FAILED {len(wrong)} of {len(expected)} accounts differ: {named}{more}")


def _difference(account: str, expected: int, found: int | None) -> str:
    has = "is not there" if found is None else f"has {found} cents"
    return f"{account} {has}, the file says {expected}"
