"""Where in the log the events of each aggregate are, and the states around them: the history index. Pure.

An entry has at most EVENTS_PER_ENTRY events. So to read an event, or the state at any sequence or time, takes a few
look-ups and the records of one entry, however long the aggregate's history and the log are.

An aggregate that has ended has no row. One more entry, without events, says at which sequence it goes on.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic

from pydantic import BaseModel, ConfigDict

from shared.domain.decider import Decider
from shared.domain.envelope import EventEnvelope
from shared.domain.errors import BadMessage, OnefoldError
from shared.domain.row import Row, RowCodec, S
from shared.domain.times import Instant

EVENTS_PER_ENTRY = 50
_NO_EVENT = datetime.fromtimestamp(0, UTC)


class LogBegins(OnefoldError):
    """The log no longer has the records before `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the log begins at offset {offset}")
        self.offset = offset


class HistoryEntry(BaseModel, Generic[S]):
    """Consecutive events of one aggregate, from its event number `first`.

    offsets: of each event in the log. latest: the greatest `occurred_at` in the history up to the last of them.
    before, after: the states; None where the beginning of the history was never read because the log lacked it.
    """

    model_config = ConfigDict(frozen=True)

    first: int
    offsets: tuple[int, ...]
    latest: Instant
    before: S | None
    after: S | None

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1

    def between(self, after: int, last: int) -> Sequence[int]:
        """Offsets of its events after sequence `after`, up to `last`."""
        return self.offsets[max(0, after + 1 - self.first) : max(0, last + 1 - self.first)]


def index_codec(state_type: Any) -> RowCodec[HistoryEntry[Any]]:
    """Of the entries, with the states of aggregates of that type."""
    return RowCodec(HistoryEntry[state_type])


def number_of(sequence: int) -> int:
    """The number of the entry that an event is in, from 0."""
    return (sequence - 1) // EVENTS_PER_ENTRY


def key_of(aggregate_id: str, number: int) -> bytes:
    return f"{aggregate_id} {number}".encode()


_ENDED = b" ended"


def ended_key(aggregate_id: str) -> bytes:
    return aggregate_id.encode() + _ENDED


def id_of_ended(key: bytes) -> bytes | None:
    """The aggregate id in a key that `ended_key` made; None for that of another entry."""
    return key.removesuffix(_ENDED) if key.endswith(_ENDED) else None


def ended(row: Row[S]) -> Row[HistoryEntry[S]]:
    """What tells of an aggregate whose `row` is deleted. Once it has begun again, its new row counts."""
    entry: HistoryEntry[S] = HistoryEntry(
        first=row.sequence + 1, offsets=(), latest=_NO_EVENT, before=row.state, after=row.state
    )
    return Row(row.sequence, entry, {}, row.offset)


def goes_on_from(initial: Row[S], told: Row[HistoryEntry[S]] | None) -> Row[S]:
    """The row, if there is none, that the next command is decided on. told: by `ended`, if the aggregate has ended."""
    return initial if told is None else Row(told.sequence, initial.state, {}, told.offset)


def continued(
    entry: HistoryEntry[Any] | None, event: EventEnvelope[Any], offset: int, decider: Decider[Any, Any, Any]
) -> HistoryEntry[Any]:
    """The entry with `event`. entry: the one with the event before it; None if there is none.

    Raises BadMessage if `event` is not the next one, TypeError if `evolve` gives None, which means unknown here.
    """
    if entry is None:
        before, latest = decider.initial if event.sequence == 1 else None, event.occurred_at
    elif event.sequence != entry.last + 1:
        raise BadMessage(f"sequence {event.sequence} follows {entry.last}")
    else:
        before, latest = entry.after, max(entry.latest, event.occurred_at)
    after = None if before is None else decider.evolve(before, event.data)
    if before is not None and after is None:
        fix = "give it a phase, such as `class Closed(State)`"
        raise TypeError(f"evolve gives None after {event.type}, which means unknown in a history; fix: {fix}")
    if entry is None or number_of(entry.last) < number_of(event.sequence):
        return HistoryEntry(first=event.sequence, offsets=(offset,), latest=latest, before=before, after=after)
    return entry.model_copy(update={"offsets": (*entry.offsets, offset), "latest": latest, "after": after})
