"""What the workers answered, compared with what the file adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NAMED = 3

Tables = Mapping[str, Mapping[str, object]]
"""Values by key, by table; `accounts` is one of the tables."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether everything agrees, and the line that says so."""

    agrees: bool
    line: str


def judge(expected: Tables, found: Tables, also: Sequence[str] = ()) -> Verdict:
    """also: what else is wrong."""
    wrong = [line for name, table in expected.items() if (line := _differences(name, table, found[name]))]
    wrong += also
    if wrong:
        return Verdict(False, f"verdict: FAILED {'; '.join(wrong)}")
    accounts = len(expected["accounts"])
    return Verdict(True, f"verdict: ok {accounts} of {accounts} accounts agree")


def _differences(name: str, expected: Mapping[str, object], found: Mapping[str, object]) -> str | None:
    wrong = sorted(key for key in expected.keys() | found.keys() if found.get(key) != expected.get(key))
    if not wrong:
        return None
    named = ", ".join(f"{key} has {found.get(key)} where the file says {expected.get(key)}" for key in wrong[:_NAMED])
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return f"{len(wrong)} of {len(expected)} {name} differ: {named}{more}"
