"""A delayed source hands out its records in their order in the log, each when it is old enough."""

from __future__ import annotations

import pytest

from shared.engine.processors import TimerProcessor
from shared.engine.sources import Source
from shared.kafka.reader import ReadRecord
from shared.runtime.positions import Place
from shared.topology.timer import Timer
from shared.topology.topics import Topic

TIMERS = Topic("shop.timers.v1")
DELAY = TimerProcessor(Timer(source=TIMERS, target=Topic("shop.commands.v1"), delay_s=5.0))


@pytest.mark.parametrize(
    ("now", "due", "next_at"),
    [(14.9, [], 15.0), (15.0, [0], 17.0), (16.9, [0], 17.0), (17.0, [0, 1, 2], 0.0)],
)
def test_a_record_waits_for_its_time_and_for_the_records_before_it(now: float, due: list[int], next_at: float) -> None:
    """Record 2 is older than record 1, as when the clocks of two workers differ."""
    written = enumerate((10.0, 12.0, 11.0))
    records = [ReadRecord(TIMERS.name, 0, offset, b"o-1", b"", int(at * 1000)) for offset, at in written]
    source = Source(Place(TIMERS.name, 0), [DELAY], position=0, end=3)
    assert [record.offset for record in source.due(records, now, elapsed=0.0)] == due
    assert source.due_at == next_at


def test_records_from_the_future_hold_up_none_for_longer_than_the_delay() -> None:
    """Their leader's clock was ahead for a while. Record 3 arrives when the first ones fall due."""
    written = enumerate((3610.0, 9.0, 3611.0, 14.0))
    records = [ReadRecord(TIMERS.name, 0, offset, b"o-1", b"", int(at * 1000)) for offset, at in written]
    source = Source(Place(TIMERS.name, 0), [DELAY], position=0, end=3)
    assert not source.due(records[:1], 10.0, elapsed=100.0)
    assert [source.is_due(now, elapsed) for now, elapsed in ((14.9, 104.9), (15.0, 105.0))] == [False, True]
    assert source.due(records, 15.0, elapsed=105.0) == records[:3]
    assert source.due_at == 19.0
