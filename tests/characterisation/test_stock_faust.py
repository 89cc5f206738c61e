"""Why the engine does not run on Faust's own agents: each test passes once it has seen stock Faust fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.characterisation.group import Group, Seen

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1800)]

ROUNDS = 30

at_least_once = partial(Group, guarantee="at_least_once", partitions=64)
"""With many partitions: Faust asks for their committed offsets one by one, and loses what it reads meanwhile."""
exactly_once = partial(Group, guarantee="exactly_once", partitions=8)

Fault = Callable[[Group], None]
Failure = Callable[[Seen], int]


def test_at_least_once_repeats_events_after_a_kill(bootstrap: str, tmp_path: Path) -> None:
    with at_least_once(bootstrap, tmp_path) as group:
        see("repeats events after a kill", group, Group.kill_and_restart, lambda seen: seen.repeated)


def test_at_least_once_repeats_events_when_workers_come_and_go(bootstrap: str, tmp_path: Path) -> None:
    with at_least_once(bootstrap, tmp_path) as group:
        see("repeats events when workers come and go", group, Group.scale_out_and_in, lambda seen: seen.repeated)


def test_at_least_once_loses_events_when_workers_come_and_go(bootstrap: str, tmp_path: Path) -> None:
    with at_least_once(bootstrap, tmp_path) as group:
        see("loses events when workers come and go", group, Group.scale_out_and_in, lambda seen: seen.lost)


def test_exactly_once_loses_or_repeats_events_after_a_kill(bootstrap: str, tmp_path: Path) -> None:
    with exactly_once(bootstrap, tmp_path) as group:
        see("loses or repeats events after a kill", group, Group.kill_and_restart, wrong)


def test_exactly_once_crashes_or_is_wrong_when_workers_come_and_go(bootstrap: str, tmp_path: Path) -> None:
    with exactly_once(bootstrap, tmp_path) as group:
        see("crashes or is wrong when workers come and go", group, Group.scale_out_and_in, wrong_or_dead)


def wrong(seen: Seen) -> int:
    return seen.lost + seen.repeated


def wrong_or_dead(seen: Seen) -> int:
    return wrong(seen) + seen.crashed


def see(what: str, group: Group, fault: Fault, failure: Failure) -> None:
    """Repeats the fault until the failure is seen."""
    for number in range(1, ROUNDS + 1):
        fault(group)
        seen = group.seen()
        print(f"{what}: round {number}, {seen}")  # noqa: T201
        if failure(seen):
            return
        assert not seen.crashed, "a worker has ended by itself: see its log"
    pytest.fail(f"stock Faust no longer {what}: see docs/reliability.md#stock-faust", pytrace=False)
