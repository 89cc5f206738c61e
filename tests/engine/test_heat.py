"""Partitions and keys with most of the work are known, by count, bytes and time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from shared.engine.heat import ENOUGH, SHARE, SLICES, WINDOW_S, Heat
from shared.runtime.positions import Place
from shared.runtime.status import HotKey

PLACE: Place = Place("shop.events.v1", 0)
OTHER: Place = Place("shop.events.v1", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _record(key: bytes, size: int = 100) -> Any:
    return SimpleNamespace(key=key, value=b"x" * size)


def _handled(heat: Heat, place: Place, key: bytes, size: int = 100, cost_s: float = 0.001) -> None:
    heat.note(place, _record(key, size), 1, cost_s, cost_s)


def _slice(heat: Heat, records: Sequence[Any]) -> bool:
    """Whether one of them stood for it."""
    chosen = heat.choose(len(records))
    if chosen is not None:
        heat.note(PLACE, records[chosen], len(records), 0.0001, 0.0001 * len(records))
    return chosen is not None


def _hot(heat: Heat, clock: Clock, place: Place = PLACE) -> list[HotKey]:
    clock.now += WINDOW_S
    _handled(heat, place, b"next")
    load = heat.load(place)
    return [] if load is None else load.hot


@pytest.mark.parametrize(
    ("busy", "of_records", "of_bytes", "of_time"),
    [
        ({"times": 100}, 0.5, 0.5, 0.5),
        ({"times": 10, "size": 1_000}, 0.09, 0.5, 0.09),
        ({"times": 10, "cost_s": 0.010}, 0.09, 0.09, 0.5),
    ],
    ids=["count", "bytes", "time"],
)
def test_a_key_is_hot_by_count_bytes_or_time(
    busy: dict[str, Any], of_records: float, of_bytes: float, of_time: float
) -> None:
    clock = Clock()
    heat = Heat(clock)
    for number in range(100):
        _handled(heat, PLACE, b"key-%d" % number)
    times = busy.pop("times")
    for _ in range(times):
        _handled(heat, PLACE, b"busy", **busy)
    (hot,) = _hot(heat, clock)
    assert hot.key == "busy"
    assert (hot.of_records, hot.of_bytes, hot.of_time) == pytest.approx((of_records, of_bytes, of_time), abs=0.01)


def test_no_key_is_hot_among_many_or_few() -> None:
    clock = Clock()
    heat = Heat(clock)
    for number in range(1_000):
        _handled(heat, PLACE, b"key-%d" % (number % 10))
    for _ in range(ENOUGH - 1):
        _handled(heat, OTHER, b"only")
    assert SHARE > 1 / 10
    assert _hot(heat, clock) == []
    load = heat.load(OTHER)
    assert load is not None
    assert (load.hot, load.records_per_s) == ([], round((ENOUGH - 1) / WINDOW_S, 3))


def test_one_slow_moment_makes_no_key_hot() -> None:
    """As when the process waits for a processor: it is in one record, which stands for 50."""
    clock = Clock()
    heat = Heat(clock)
    for number in range(2_500):
        alone_s = 0.060 if number == 7 else 0.00002
        heat.note(PLACE, _record(b"key-%d" % number), 50, alone_s, 0.001 + alone_s)
    assert _hot(heat, clock) == []


def test_of_many_keys_only_the_hot_are_looked_at_and_once_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` is asked on the engine's loop, by many."""
    clock, made = Clock(), list[HotKey]()
    heat = Heat(clock)

    def noted(**shares: Any) -> HotKey:
        made.append(HotKey(**shares))
        return made[-1]

    monkeypatch.setattr("shared.engine.heat.HotKey", noted)
    for number in range(10_000):
        _handled(heat, PLACE, b"busy" if number % 2 else b"key-%d" % (number % 1_000))
    _hot(heat, clock)
    heat.load(PLACE)
    assert [each.key for each in made] == ["busy"]


def test_keys_that_take_turns_are_all_the_same_whatever_the_length_of_a_slice() -> None:
    """As a fixed place within each slice would not see it: always the same key would stand for all."""
    clock, keys = Clock(), cycle([b"key-%d" % number for number in range(10)])
    heat = Heat(clock)
    for _ in range(1_000):
        records = [_record(next(keys)) for _ in range(50)]
        _slice(heat, records)
    assert _hot(heat, clock) == []
    load = heat.load(PLACE)
    assert load is not None
    assert (load.records_per_s, load.bytes_per_s, load.busy) == (10_000, 1_000_000, 1)


def test_where_there_are_many_slices_some_stand_for_all() -> None:
    clock = Clock()
    heat, records = Heat(clock), [_record(b"busy" if number < 5 else b"key-%d" % number) for number in range(10)]
    for window in range(3):
        stood = sum(_slice(heat, [records[number % 10]]) for number in range(4 * SLICES))
        assert stood == pytest.approx(SLICES if window else 4 * SLICES, rel=0.1)
        (hot,) = _hot(heat, clock)
        load = heat.load(PLACE)
        assert load is not None
        assert load.records_per_s == pytest.approx(4 * SLICES / WINDOW_S, rel=0.1)
        assert hot.key == "busy"
        assert hot.of_records == pytest.approx(0.5, abs=0.05)


def test_what_was_long_ago_is_no_load_but_counts() -> None:
    clock = Clock()
    heat = Heat(clock)
    _handled(heat, PLACE, b"key")
    assert heat.load(PLACE) is None  # the window is not over
    _hot(heat, clock)
    assert heat.load(PLACE) is not None
    clock.now += 2 * WINDOW_S + 1
    assert heat.load(PLACE) is None
    _handled(heat, PLACE, b"key")  # which ends a long window
    assert heat.load(PLACE) is None
    assert (heat.totals[PLACE].records, heat.totals[PLACE].seconds) == (3, 0.003)


def test_ids_of_any_bytes_are_shown() -> None:
    clock = Clock()
    heat = Heat(clock)
    for _ in range(ENOUGH):
        heat.note(PLACE, SimpleNamespace(key=b"\xff", value=None), 1, 0.0, 0.0)  # type: ignore[arg-type]
    (hot,) = _hot(heat, clock)
    assert (hot.key, hot.of_records, hot.of_bytes, hot.of_time) == ("�", 1, 0, 0)
