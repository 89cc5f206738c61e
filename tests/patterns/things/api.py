"""The HTTP API of things: takes commands, shows titles."""

from typing import Literal

from pydantic import BaseModel

from shared.domain import Row
from shared.service import Resource
from tests.patterns.things.domain.commands import CloseThing, CreateThing, RenameThing
from tests.patterns.things.domain.decide import DECIDER
from tests.patterns.things.domain.state import Absent, Thing
from tests.patterns.things.topology import THINGS


class ThingView(BaseModel):
    """sequence: number of events so far."""

    thing_id: str
    phase: Literal["open", "closed"]
    title: str
    sequence: int


def thing_view(thing_id: str, row: Row[Thing]) -> ThingView | None:
    """None for a thing that was never created."""
    if isinstance(row.state, Absent):
        return None
    return ThingView(thing_id=thing_id, phase=row.state.phase, title=row.state.title, sequence=row.sequence)


routes = Resource(
    "/things/{thing_id}",
    THINGS,
    thing_view,
    filters=("phase",),
    decider=DECIDER,
    commands={"": CreateThing, "title": RenameThing, "closure": CloseThing},
)
