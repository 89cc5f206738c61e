"""A source that is read again: what is parked stays parked, once, and what lies before it is handled or parked too."""

from __future__ import annotations

from typing import cast

from shared.parking import PARKED_CODEC
from shared.streams.batch import Batch, Rows, SourceRecord
from shared.streams.parking import Parking
from shared.streams.processors import Processor
from shared.streams.store import RowStore
from shared.testing.conversation import Said
from shared.topology import Topic

FACTS = Topic("shop.events.v1")
LOG = [Said(FACTS.name, key, b"", offset) for offset, key in enumerate((b"a", b"a", b"b", b"a"))]


class Fragile(Processor):
    """Can't handle the record at `breaks_at`."""

    name, source = "fragile", FACTS

    def __init__(self, breaks_at: int = 1) -> None:
        self.breaks_at = breaks_at
        self.handled: list[int] = []

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        if record.offset == self.breaks_at:
            raise ValueError("too heavy")
        self.handled.append(record.offset)


class Nothing:
    """A store without a row."""

    def get(self, _partition: int, _key: bytes) -> None:
        return None


def test_read_again_a_parked_record_holds_back_only_what_is_behind_it() -> None:
    parking, processor, batch = _parking(), Fragile(), Batch("dead-letters")
    processor.process(LOG, None, batch, parking)
    parked, letters = parking.get("fragile/0/a"), list(batch.records)
    assert parked is not None
    assert (parked.offsets, len(letters)) == ((1, 3), 1)

    processor.process(LOG, None, batch, parking)
    assert processor.handled == [0, 2, 0, 2]
    assert parking.get("fragile/0/a") == parked
    assert batch.records == letters


def test_a_discarded_record_that_fails_again_is_parked_anew_before_the_others() -> None:
    parking, processor, batch = _parking(), Fragile(), Batch("dead-letters")
    processor.process(LOG, None, batch, parking)
    parked = parking.get("fragile/0/a")
    assert parked is not None
    parking.keep("fragile/0/a", parked.without_first())

    processor.process(LOG, None, batch, parking)
    anew = parking.get("fragile/0/a")
    assert anew is not None
    assert (anew.offsets, anew.code, anew.attempts) == ((1, 3), "processor.failed", 1)
    assert processor.handled == [0, 2, 0, 2]


def test_what_lies_behind_an_earlier_failure_waits_in_its_place() -> None:
    parking, batch = _parking(), Batch("dead-letters")
    Fragile(breaks_at=3).process(LOG, None, batch, parking)
    mended = Fragile(breaks_at=0)
    mended.process(LOG, None, batch, parking)
    parked = parking.get("fragile/0/a")
    assert parked is not None
    assert parked.offsets == (0, 1, 3)
    assert mended.handled == [2]


def _parking() -> Parking:
    return Parking(Rows("", cast(RowStore, Nothing()), 0, None, PARKED_CODEC), set())
