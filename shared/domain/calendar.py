"""Times of the wall clock, and what comes again by it: when that is in UTC. Pure, but for the rules of time zones.

These change with each release of the tz database, of which two workers may have two. So a due time is computed once, in
`decide`, and kept in its event; `evolve` and projections take it from there.
"""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shared.domain.times import Instant

_DAY = timedelta(days=1)


def at(wall: datetime, zone: str) -> Instant:
    """When the clocks of `zone`, such as Europe/Berlin, show `wall`, a datetime without a zone.

    What they show twice, as they are put back, is the first time. What they never show, as they are put forward, is as
    long after the change as it would have been without one: 02:30 is 03:30 by the new time.

    Raises ValueError for a `wall` with a zone, and for a `zone` that the tz database does not have.
    """
    if wall.tzinfo is not None:
        raise ValueError(f"{wall} has a zone; fix: give the time that clocks show, without one")
    return wall.replace(tzinfo=_known(zone), fold=0).astimezone(UTC)


def every(previous: Instant, step: timedelta | time, zone: str = "UTC") -> Instant:
    """The first due time after `previous`, which is the one before, or any moment to begin at.

    step: a timedelta is that much later, whatever clocks show. A time is when the clocks of `zone` next show it, once
    for each of its days, by the rule of `at`. It follows from nothing but these three, so no restart, no other clock
    and no outage leaves one out or gives one twice.

    Raises ValueError as `at` does, and for a timedelta that is not above zero.
    """
    if isinstance(step, timedelta):
        if step <= timedelta():
            raise ValueError(f"every {step} never ends; fix: give a timedelta above zero")
        return previous + step
    day = previous.astimezone(_known(zone)).date() - _DAY  # a time of the day before may be moved past midnight
    while (due := at(datetime.combine(day, step), zone)) <= previous:
        day += _DAY
    return due


def _known(zone: str) -> ZoneInfo:
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError(f"there is no time zone {zone!r}; fix: name one such as Europe/Berlin") from None
