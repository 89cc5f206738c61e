"""Times of the wall clock, and what comes again by it, whatever clocks do."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain import at, every

BERLIN = "Europe/Berlin"
# put forward and back by an hour, by half an hour, at midnight, and by a whole day
ZONES = st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "UTC"])
DAYS = st.dates(date(2010, 1, 1), date(2027, 12, 31))
WALLS = st.builds(datetime.combine, DAYS, st.times())


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("wall", "due"),
    [
        ("2026-01-15T09:00", "2026-01-15T08:00"),
        ("2026-07-15T09:00", "2026-07-15T07:00"),
        ("2026-03-29T02:30", "2026-03-29T01:30"),  # never shown: at 03:30 by the new time
        ("2026-10-25T02:30", "2026-10-25T00:30"),  # shown twice: the first time
    ],
)
def test_a_time_of_the_wall_clock_is_one_moment(wall: str, due: str) -> None:
    assert at(datetime.fromisoformat(wall), BERLIN) == utc(due)


@settings(deadline=None)
@given(WALLS, ZONES)
def test_clocks_show_it_then_and_not_before_or_later_if_they_never_show_it(wall: datetime, zone: str) -> None:
    due = at(wall, zone)
    shown = due.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    before = (due - timedelta(days=2)).astimezone(ZoneInfo(zone)).utcoffset()
    assert shown >= wall
    if shown > wall:
        assert before == wall - due.replace(tzinfo=None)  # as long after the change as without one
    else:
        assert due <= wall.replace(tzinfo=ZoneInfo(zone), fold=1).astimezone(UTC)


@settings(deadline=None)
@given(DAYS, st.times(), ZONES)
def test_a_daily_time_comes_once_for_each_day(first: date, daily: time, zone: str) -> None:
    days = [first + timedelta(days=number) for number in range(200)]
    wanted = list(dict.fromkeys(at(datetime.combine(day, daily), zone) for day in days))  # Apia had no 2011-12-30
    found = [wanted[0]]
    while found[-1] < wanted[-1]:
        found.append(every(found[-1], daily, zone))
    assert found == wanted


@settings(deadline=None)
@given(WALLS.map(lambda wall: wall.replace(tzinfo=UTC)), st.times(), ZONES, st.data())
def test_it_is_the_same_from_any_moment_since_the_one_before(
    began: datetime, daily: time, zone: str, data: st.DataObject
) -> None:
    first = every(began, daily, zone)
    second = every(first, daily, zone)
    assert began < first < second
    moment = data.draw(st.floats(0, 1, exclude_max=True)) * (second - first) + first
    assert every(min(moment, second - timedelta(microseconds=1)), daily, zone) == second


def test_so_many_hours_later_is_so_much_later_whatever_clocks_show() -> None:
    due = [utc("2026-03-28T18:00")]
    for _ in range(6):
        due.append(every(due[-1], timedelta(hours=6), BERLIN))
    assert {later - earlier for earlier, later in pairwise(due)} == {timedelta(hours=6)}


def test_what_can_never_be_due_is_refused() -> None:
    for step in (timedelta(), timedelta(hours=-1)):
        with pytest.raises(ValueError, match="never ends"):
            every(utc("2026-01-01"), step)
    for zone in ("Europe/Bielefeld", "", "../etc"):
        with pytest.raises(ValueError, match="there is no time zone"):
            at(utc("2026-01-01").replace(tzinfo=None), zone)
    with pytest.raises(ValueError, match="has a zone"):
        at(utc("2026-01-01"), BERLIN)
