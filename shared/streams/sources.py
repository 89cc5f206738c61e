"""The partitions of topics that are processed here, and how far each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from shared.kafka.reader import ReadRecord
from shared.streams.processors import Processor


class SourceGone(Exception):
    """The log begins behind the group's position, or ends before it.

    Operator action: do what the message says after `fix:`.
    """


@dataclass(slots=True)
class Source:
    """One partition.

    position: the next offset to handle. end: the last end seen. handled_until: timestamp of the last record
    handled here. due_at: when a delayed source continues, 0 when it does not wait. Times in seconds since the epoch.
    """

    partition: TopicPartition
    processors: Sequence[Processor]
    position: int
    end: int
    handled_until: float = 0.0
    due_at: float = 0.0

    @property
    def delay_s(self) -> float:
        return self.processors[0].delay_s if self.processors else 0.0

    def due(self, records: Sequence[ReadRecord], now: float) -> Sequence[ReadRecord]:
        """The records that are old enough. The first one that isn't sets `due_at`."""
        for index, record in enumerate(records):
            due_at = record.timestamp / 1000 + self.delay_s
            if due_at > now:
                self.due_at = due_at
                return records[:index]
        return records

    def handled(self, records: Sequence[ReadRecord]) -> None:
        self.position = records[-1].offset + 1
        self.handled_until = records[-1].timestamp / 1000


def first_position(tp: TopicPartition, committed: int | None, start: int, end: int) -> int:
    """The offset to continue reading at. Raises SourceGone when the log begins behind it, or ends before it."""
    if committed is None:
        return start
    if committed < start:
        raise SourceGone(
            f"{tp.topic}/{tp.partition}: offsets {committed} to {start - 1} were removed before they were read; fix: "
            f"accept the loss by resetting the group's offset in it to {start}; if a view reads it, then raise "
            f"`version` in topology.py and `rebuild` with `--archive`"
        )
    if committed > end:
        raise SourceGone(
            f"{tp.topic}/{tp.partition}: read up to offset {committed}, but the log ends at {end}: was it recreated? "
            f"fix: restore it from a backup; or reset the group's offsets in it, raise `version` in topology.py, then "
            f"`rebuild`, because rows skip records up to the offsets that they have"
        )
    return committed
