"""The partitions of topics that are processed here, and how far each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.engine.processors import Processor
from shared.kafka.reader import ReadRecord
from shared.runtime.positions import Place


class SourceGone(Exception):
    """The log begins behind the group's position, or ends before it.

    Operator action: do what the message says after `fix:`.
    """


class Spreading(NamedTuple):
    """A record that is handled in part, and goes on. by: the processors that are not done with it."""

    offset: int
    by: Sequence[Processor] = ()


@dataclass(slots=True)
class Source:
    """One partition.

    position: the next offset to handle. end: the last end seen. handled_until: timestamp of the last record
    handled here. due_at: when a delayed source continues, 0 when it does not wait. Times in seconds since the epoch.
    due_by: the latest that it may wait until, by `elapsed_s`. begins: the first offset that a processor handles, by its
    name, for those that pass over earlier ones. spreading: its next record, if that is handled in part.
    held_back: whether nothing is read, as another version acts. followed: whether another version is followed here.
    """

    place: Place
    processors: Sequence[Processor]
    position: int
    end: int
    handled_until: float = 0.0
    due_at: float = 0.0
    due_by: float = 0.0
    begins: Mapping[str, int] = field(default_factory=dict)
    spreading: Spreading | None = None
    held_back: bool = False
    followed: bool = False
    _known_end: int = 0  # what lies before it was in the log at `_known_at`, by `elapsed_s`
    _known_at: float = 0.0

    @property
    def delay_s(self) -> float:
        return self.processors[0].delay_s if self.processors else 0.0

    def handlers(self, records: Sequence[ReadRecord]) -> Sequence[Processor]:
        """Who handles them: what is handled in part, only those that are not done with it."""
        spreading = self.spreading
        return self.processors if spreading is None or spreading.offset != records[0].offset else spreading.by

    def begun(self, processor: Processor, records: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """Those of `records` that the processor does not pass over."""
        begin = self.begins.get(processor.name, 0)
        return records if begin <= records[0].offset else [each for each in records if each.offset >= begin]

    def due(self, records: Sequence[ReadRecord], now: float, elapsed: float) -> Sequence[ReadRecord]:
        """The records that are old enough. The first one that isn't sets `due_at` and `due_by`.

        now: by the brokers. A record that was known here `delay_s` ago is old enough, whatever its stamp says: a leader
        whose clock was ahead would hold up all records behind it until its time.
        """
        if records[0].offset >= self._known_end:
            self._known_end, self._known_at = max(self.end, records[-1].offset + 1), elapsed
        for index, record in enumerate(records):
            known_at = self._known_at if record.offset < self._known_end else elapsed
            due_at, due_by = record.timestamp / 1000 + self.delay_s, known_at + self.delay_s
            if due_at > now and due_by > elapsed:
                self.due_at, self.due_by = due_at, due_by
                return records[:index]
        return records

    def is_due(self, now: float, elapsed: float) -> bool:
        """Whether a delayed source that waits may continue."""
        return self.due_at <= now or self.due_by <= elapsed

    def handled(self, records: Sequence[ReadRecord]) -> None:
        self.spreading = None
        self.position = records[-1].offset + 1
        self.handled_until = records[-1].timestamp / 1000


def first_position(place: Place, committed: int | None, start: int, end: int) -> int:
    """The offset to continue reading at. Raises SourceGone when the log begins behind it, or ends before it."""
    if committed is None:
        return start
    if committed < start:
        raise SourceGone(
            f"{place}: offsets {committed} to {start - 1} were removed before they were read; fix: "
            f"accept the loss by resetting the group's offset in it to {start}; if a view reads it, then raise "
            f"`version` in topology.py and `rebuild` with `--archive`"
        )
    if committed > end:
        raise SourceGone(
            f"{place}: read up to offset {committed}, but the log ends at {end}: was it recreated? "
            f"fix: restore it from a backup; or reset the group's offsets in it, raise `version` in topology.py, then "
            f"`rebuild`, because rows skip records up to the offsets that they have"
        )
    return committed
