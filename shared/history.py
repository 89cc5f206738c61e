"""Where in its log the events of each aggregate lie, and the states around them: a table of chapters. Pure.

A chapter has at most EVENTS_A_CHAPTER events. So an event, or the state at any sequence or time, costs a few look-ups
and the records of one chapter, however long the aggregate's history and the log are.
"""

from collections.abc import Sequence
from typing import Any, Generic

from pydantic import BaseModel, ConfigDict

from shared.es.decider import Decider
from shared.es.envelope import EventEnvelope
from shared.es.errors import BadMessage, OnefoldError
from shared.es.row import S
from shared.es.times import Instant

EVENTS_A_CHAPTER = 50


class LogBegins(OnefoldError):
    """The log has nothing before `offset` any more."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the log begins at offset {offset}")
        self.offset = offset


class Chapter(BaseModel, Generic[S]):
    """Consecutive events of one aggregate, the first of them its event number `first`.

    offsets: of each, in the log. latest: the greatest `occurred_at` in all of the history up to the last of them.
    before, after: the states; None where the history's beginning was never read, because the log lacked it.
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
        """Offsets of its events behind sequence `after` up to `last`."""
        return self.offsets[max(0, after + 1 - self.first) : max(0, last + 1 - self.first)]


def number_of(sequence: int) -> int:
    """Of the chapter an event is in, from 0."""
    return (sequence - 1) // EVENTS_A_CHAPTER


def key_of(aggregate_id: str, number: int) -> bytes:
    return f"{aggregate_id} {number}".encode()


def continued(
    chapter: Chapter[Any] | None, event: EventEnvelope[Any], offset: int, decider: Decider[Any, Any, Any]
) -> Chapter[Any]:
    """The chapter that `event` is in. chapter: with the event before it; None if there is none.

    Raises BadMessage for an event that does not follow.
    """
    if chapter is None:
        before, latest = decider.initial if event.sequence == 1 else None, event.occurred_at
    elif event.sequence != chapter.last + 1:
        raise BadMessage(f"sequence {event.sequence} behind {chapter.last}")
    else:
        before, latest = chapter.after, max(chapter.latest, event.occurred_at)
    after = None if before is None else decider.evolve(before, event.data)
    if chapter is None or number_of(chapter.last) < number_of(event.sequence):
        return Chapter(first=event.sequence, offsets=(offset,), latest=latest, before=before, after=after)
    return chapter.model_copy(update={"offsets": (*chapter.offsets, offset), "latest": latest, "after": after})
