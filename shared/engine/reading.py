"""The reader of what is held: none of it is left out, and nothing is fetched that can't be handled yet."""

from __future__ import annotations

from collections.abc import Iterable

from shared.engine.guards import GapGuard
from shared.engine.holdings import Holdings
from shared.engine.lagging import Lagging
from shared.engine.sources import Source
from shared.kafka.reader import Reader, ReadRecord
from shared.runtime.positions import Place


class Reading:
    def __init__(self, reader: Reader, holdings: Holdings) -> None:
        self._reader = reader
        self._holdings = holdings
        self._gap_guard = GapGuard({})
        self._lagging = Lagging(holdings)
        self.fetched = 0

    @property
    def paused(self) -> set[Place]:
        return self._reader.paused()

    @property
    def fills_batch(self) -> bool:
        """Whether records of sources are fetched, not only those of changelogs."""
        return not self._holdings.sources.keys() <= self._reader.paused()

    @property
    def sets_aside(self) -> bool:
        """Whether some of what was read waits to be fetched."""
        return bool(self._lagging.records)

    def position(self, place: Place) -> int:
        """The next offset to fetch."""
        waiting = self._lagging.records.get(place)
        return waiting[0].offset if waiting else self._reader.position(place)

    def lag(self, source: Source) -> int:
        """How many records of the source, transaction markers included, are not handled yet."""
        if source.place in self._reader.assignment():
            source.end = max(source.end, self._reader.highwater(source.place))
        return max(0, source.end - source.position)

    def begin(self) -> None:
        """Read all that is held; sources wait until the tables of their partition are restored.

        Not what is ours: the marker that ends it may not be written yet, and a broker refuses a fetch from behind it.
        """
        held = self._holdings.replicas.held.items()
        positions = {place: source.position for place, source in self._holdings.sources.items()}
        positions |= {place: replica.position for place, replica in held if not replica.ours}
        if positions:
            self._reader.assign(positions)
            self._gap_guard = GapGuard(positions)
            self._reader.pause(*(self._holdings.unread() & positions.keys()))

    def end(self) -> None:
        self._reader.assign({})
        self._gap_guard = GapGuard({})
        self._lagging = Lagging(self._holdings)

    async def learn(self, topics: Iterable[str]) -> None:
        """Returns once the reader knows these topics. Raises ReadRefused for one that was made again."""
        await self._reader.learn({*topics})

    async def fetch(self, wait_ms: int, at_most: int) -> dict[Place, list[ReadRecord]]:
        """What is there within the time, by partition. What may lag is read on, and comes with a later fetch."""
        fetched = await self._reader.getmany(timeout_ms=wait_ms, max_records=at_most)
        for place, asked in list(self._gap_guard.unseen.items()):
            position = self._reader.position(place)
            if position == asked:
                continue
            first = fetched[place][0].offset if place in fetched else position
            if self._gap_guard.must_reread(place, first):
                self._reader.seek(place, asked)
                fetched.pop(place, None)
        sources = self._holdings.sources
        self.fetched = sum(len(records) for place, records in fetched.items() if place in sources)
        return self._lagging.exchange(fetched, at_most)

    def go_to(self, place: Place, offset: int) -> None:
        """Read from there on. What is fetched then could be dropped, as after an assignment."""
        self._reader.seek(place, offset)
        self._gap_guard.expect(place, offset)

    def pause(self, source: Source) -> None:
        self._reader.pause(source.place)

    def resume_due(self, now: float, elapsed: float) -> None:
        """Delayed sources whose next record is old enough. now: by the brokers; elapsed: `elapsed_s`."""
        for place, source in self._holdings.sources.items():
            if source.due_at and source.is_due(now, elapsed):
                source.due_at = 0.0
                self._reader.resume(place)

    def follow_changelogs(self) -> None:
        """Past offsets without a record, too: markers, aborted and compacted records."""
        reader, held = self._reader, self._holdings.replicas.held.items()
        if [place for place, r in held if not r.ours and r.advance(reader.position(place), reader.highwater(place))]:
            unread = self._holdings.unread()
            reader.pause(*(reader.assignment() & unread))
            reader.resume(*(reader.assignment() - unread))
        self._holdings.replicas.tell_of_restore()

    async def stop(self) -> None:
        await self._reader.stop()
