"""Each partition, once its rows are restored and before its first record is handled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial

import structlog

from shared.engine.filling import Filling
from shared.engine.holdings import Holdings, Plan
from shared.engine.processors import Processor
from shared.engine.sources import Source
from shared.engine.versions import VersionGuard
from shared.parking.parked import STOOD
from shared.parking.parking import Parking
from shared.runtime.positions import Place

log = structlog.get_logger(__name__)


class Beginning:
    def __init__(self, holdings: Holdings, version: VersionGuard, go_to: Callable[[Place, int], None]) -> None:
        """go_to: has a partition read from there on."""
        self._holdings = holdings
        self._version = version
        self._new: dict[int, list[Place]] = {}  # sources without a position, by partition
        self._go_to = go_to
        self._starts: Mapping[Place, int] = {}
        self._ends: Mapping[Place, int] = {}

    def expect(self, plan: Plan) -> None:
        self._starts, self._ends = plan.starts, plan.ends
        self._new = {place.number: [] for place in plan.positions}
        for place in sorted(plan.new):
            self._new[place.number].append(place)

    def drop(self) -> None:
        self._new.clear()

    def begin(self, filling: Filling) -> bool:
        """Check what is noted beside the rows of each partition that has been restored, and put into the batch where
        its sources without a position begin. So a later owner sees that this version has begun, and no row is without a
        position. Returns whether the batch has to be committed before any record. Raises VersionRefused.
        """
        if not self._new:
            return False
        begun = [
            place for number in self._holdings.restored() & self._new.keys() for place in self._checked(number, filling)
        ]
        for place in begun:
            filling.batch.advance(place, self._holdings.sources[place].position, 0)
        return bool(begun)

    def _checked(self, number: int, filling: Filling) -> list[Place]:
        parking = Parking(filling.rows(self._holdings.topology.parked, number), set())
        if parking.superseded:
            self._version.refuse_successor()
        noted, unread = parking.topics, {place.topic for place in self._new[number]}
        present = self._holdings.topic_ids
        has_offsets = partial(self._has_offsets, number, filling, parking)
        self._version.refuse_by_notes(number, noted, present, unread, has_offsets)
        if noted and unread:
            filling.parking(number)  # notes which topics these positions are in
        again = {at for at in self._new[number] if noted.get(at.topic, present[at.topic]) != present[at.topic]}
        for place in again:
            self._begin_at_start(self._holdings.sources[place])
        self._begin_late(number, parking, again)
        return self._new.pop(number)

    def _begin_at_start(self, source: Source) -> None:
        """Of a topic that was made again after the service had read it: what it holds is new, and nobody's past."""
        place, start = source.place, self._starts[source.place]
        if source.position != start:  # where all begin at the present
            source.position = self._holdings.reached[place] = start
            self._go_to(place, start)

    def _begin_late(self, number: int, parking: Parking, again: Set[Place]) -> None:
        """Let processors that do not begin at their source's start pass over what lies before; noted beside the rows,
        for the next owner, while the position is not there yet. again: sources that were made again: none of these.
        """
        before = parking.begins
        # of a source that this release does not read, it holds for the next one that does
        begins = {topic: noted for topic, noted in before.items() if topic not in self._holdings.processors}
        for place, source in self._holdings.sources.items():
            if place.number != number or place in again:
                continue
            if ahead := self._ahead(source, before.get(place.topic, {})):
                source.begins = begins[place.topic] = ahead
        if begins != before:
            parking.note_begins(number, begins)

    def _ahead(self, source: Source, noted: Mapping[str, int]) -> dict[str, int]:
        """By processor, the first offset that it handles, of those for which that is not the position."""
        place, late = source.place, [each.name for each in source.processors if not each.from_start]
        if place in self._new[place.number]:  # what was noted was of a topic that is read anew
            noted, present = {}, self._ends[place]
            if late and present:
                log.info("policies begin at the present", source=str(place), at=present, names=late)
        else:  # one that is new begins where others of this source do, and sends nothing of what the group has read
            present = max(noted.values(), default=0)
        stood, sending = noted.get(STOOD, 0), [each.name for each in source.processors if not each.repeatable]
        begins = dict.fromkeys(late, present) | dict(noted)
        begins |= {name: max(stood, begins.get(name, 0)) for name in sending}
        return {name: offset for name, offset in begins.items() if offset > source.position}

    def _has_offsets(self, number: int, filling: Filling, parking: Parking, processor: Processor) -> bool:
        """Whether rows say up to which record of its source they have come, or what tells of those that have ended."""
        tables = [table for table in (processor.table, processor.history_index) if table is not None]
        has_rows = any(True for table in tables for _ in filling.rows(table, number).store.scan(number))
        about = processor.name, processor.source.name
        return has_rows or max(parking.ended(*about), parking.clock(*about).offset) >= 0
