"""Which commands a thing accepts, and which events follow."""

from typing import assert_never, get_args

from shared.domain import Decider
from tests.patterns.things.domain.commands import CloseThing, CreateThing, RenameThing, ThingCommand
from tests.patterns.things.domain.errors import AlreadyClosed, AlreadyCreated, NoTitle, UnknownThing
from tests.patterns.things.domain.events import ThingClosed, ThingCreated, ThingEvent, ThingRenamed
from tests.patterns.things.domain.state import INITIAL, Absent, Closed, Open, Thing, evolve


def decide(command: ThingCommand, thing: Thing) -> list[ThingEvent]:
    """The events that follow from `command`; none if it was already so. Raises ThingError."""
    match command, thing:
        case CreateThing(title=title), Absent():
            return [ThingCreated(title=_checked(title))]
        case CreateThing(), _:
            raise AlreadyCreated("CreateThing refused: the thing exists")
        case _, Absent():
            raise UnknownThing(f"{type(command).__name__} refused: the thing was never created")
        case CloseThing(), _:
            return [] if isinstance(thing, Closed) else [ThingClosed()]
        case _, Closed():
            raise AlreadyClosed(f"{type(command).__name__} refused: the thing is closed")
        case RenameThing(title=title), Open(title=present):
            return [] if title == present else [ThingRenamed(title=_checked(title))]
        case _:
            assert_never(command)


def _checked(title: str) -> str:
    """Raises NoTitle."""
    if not title.strip():
        raise NoTitle(f"{title!r} refused: a title has a character that can be seen")
    return title


DECIDER: Decider[ThingCommand, ThingEvent, Thing] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(ThingCommand),
    events=get_args(ThingEvent),
    state=Thing,
)
