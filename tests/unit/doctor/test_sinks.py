"""A table outside that stays behind is told, with whether anybody fills it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.doctor.examine import examine
from shared.doctor.snapshot import Filled
from tests.unit.doctor.healthy import HEALTHY, only

TABLE = ("accounts", "accounts_v1")


@pytest.mark.parametrize(
    ("filled", "code", "cure"),
    [
        (Filled(*TABLE, unread=5, waits_s=4.0), "sink.stands", "python3 dev.py sink run accounts"),
        (Filled(*TABLE, unread=5, waits_s=4.0, reason="it is full"), "sink.waits", "resolve that"),
        (Filled(*TABLE, "one@a:7", 5, 40.0, stands=True), "sink.stuck", "look in the log of one@a:7"),
        (Filled("accounts", "", problem="refused"), "sink.database", "start it"),
    ],
)
def test_a_table_that_stays_behind_is_named(filled: Filled, code: str, cure: str) -> None:
    finding = only(replace(HEALTHY, sinks=[filled]))
    assert finding.code == code
    assert finding.cure.startswith(cure)


@pytest.mark.parametrize(
    "filled",
    [
        Filled(*TABLE),  # all that is stopped, and nothing to do
        Filled(*TABLE, unread=5, waits_s=1.0),  # one that starts again
        Filled(*TABLE, "one@a:7", 5_000_000, 1e8),  # it goes through history, and gets on
    ],
)
def test_nothing_is_said_of_one_that_has_nothing_to_do_or_gets_on(filled: Filled) -> None:
    assert examine(replace(HEALTHY, sinks=[filled])) == []
