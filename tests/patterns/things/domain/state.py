"""A thing is absent, open or closed."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from shared.domain import State
from tests.patterns.things.domain.events import ThingClosed, ThingCreated, ThingEvent, ThingRenamed


class Absent(State):
    phase: Literal["absent"] = "absent"


class Open(State):
    phase: Literal["open"] = "open"
    title: str


class Closed(State):
    phase: Literal["closed"] = "closed"
    title: str


Thing = Annotated[Absent | Open | Closed, Field(discriminator="phase")]

INITIAL: Thing = Absent()


def evolve(thing: Thing, event: ThingEvent) -> Thing:
    """The thing after `event`."""
    match event:
        case ThingCreated(title=title) | ThingRenamed(title=title):
            return Open(title=title)
        case ThingClosed():
            return Closed(title="" if isinstance(thing, Absent) else thing.title)
        case _:
            assert_never(event)
