"""What the engine notices about its own reading: a batch that was left out, a position that stands still."""

from __future__ import annotations

import pytest

from shared.streams.guards import STANDSTILL_S, Beginnings, Standstill, Watchdog

PLACE, OTHER = ("accounts.commands.v1", 0), ("accounts.commands.v1", 1)


def test_what_begins_where_it_was_asked_to_is_believed() -> None:
    assert not Beginnings({PLACE: 7}).must_reread(PLACE, 7)


def test_a_gap_is_believed_when_it_is_found_twice() -> None:
    beginnings = Beginnings({PLACE: 7})
    assert beginnings.must_reread(PLACE, 9)
    assert not beginnings.must_reread(PLACE, 9)
    assert PLACE not in beginnings.unseen


def test_a_batch_that_was_dropped_twice_is_read_in_the_end() -> None:
    beginnings = Beginnings({PLACE: 7})
    assert beginnings.must_reread(PLACE, 20)
    assert beginnings.must_reread(PLACE, 12)
    assert not beginnings.must_reread(PLACE, 7)


def test_who_moves_does_not_stand_still() -> None:
    watchdog = Watchdog()
    for time, position in enumerate(range(100)):
        watchdog.check({PLACE: position}, {PLACE: 1_000 + position}, time * STANDSTILL_S)


def test_who_has_nothing_new_does_not_stand_still() -> None:
    """Only markers may be left, or the brokers were away."""
    watchdog = Watchdog()
    for time in range(10):
        watchdog.check({PLACE: 5}, {PLACE: 9}, time * STANDSTILL_S)
    watchdog.check({PLACE: 5}, {PLACE: 10}, 10 * STANDSTILL_S - 1)


def test_who_stands_while_records_come_is_noticed() -> None:
    watchdog = Watchdog()
    watchdog.check({PLACE: 5, OTHER: 1}, {PLACE: 5, OTHER: 1}, 0.0)
    watchdog.check({PLACE: 5, OTHER: 2}, {PLACE: 6, OTHER: 2}, STANDSTILL_S - 1)
    with pytest.raises(Standstill, match=r"accounts\.commands\.v1/0 has stayed at offset 5 .* now 7; fix: start"):
        watchdog.check({PLACE: 5, OTHER: 3}, {PLACE: 7, OTHER: 3}, STANDSTILL_S)


def test_a_partition_that_was_elsewhere_begins_anew() -> None:
    watchdog = Watchdog()
    watchdog.check({PLACE: 5}, {PLACE: 5}, 0.0)
    watchdog.check({}, {}, 10.0)
    watchdog.check({PLACE: 5}, {PLACE: 99}, STANDSTILL_S + 10)
