"""A service with a joined view: what is left of each crop, of what two others harvest and eat."""

from collections.abc import Mapping
from typing import Any

from shared.domain import Event, State
from shared.testing.scenario import NOON
from shared.topology import Join, Projection, Service, Table, Topic, Topology

HARVESTED, EATEN = Topic("fields.events.v1"), Topic("kitchens.events.v1")
HEAPS, MEALS = Table("heaps", source=HARVESTED, ends=True), Table("meals", source=EATEN, ends=True)
LEFT = Table.joined("left", HEAPS, MEALS, indexes=("kilos",))
TOPOLOGY = Topology("larder", topics=(), tables=(HEAPS, MEALS, LEFT), partitions=3)


class Harvested(Event):
    TYPE = "crop.harvested"

    kilos: int


class Eaten(Event):
    TYPE = "meal.eaten"

    kilos: int


class Sum(State):
    """Neither a sum alone, nor a list that would grow: `last` makes the order within a topic matter."""

    kilos: int = 0
    last: int = 0


class Left(State):
    kilos: int
    last: tuple[int, int]


def added(view: Sum, event: Any, _crop: str) -> Sum:
    """No kilos at all end the sum, as at the end of a season."""
    if not event.data.kilos:
        return Sum()
    return Sum(kilos=view.kilos + event.data.kilos, last=event.data.kilos)


def left(heap: Sum, meal: Sum, _crop: str) -> Left:
    return Left(kilos=heap.kilos - meal.kilos, last=(heap.last, meal.last))


HEAPED: Projection[Any, Sum] = Projection(HEAPS, added, initial=Sum(), events=(Harvested,), state=Sum)
COOKED: Projection[Any, Sum] = Projection(MEALS, added, initial=Sum(), events=(Eaten,), state=Sum)
JOIN = Join(LEFT, left, state=Left)
SERVICE = Service(TOPOLOGY, projections=[HEAPED, COOKED], joins=[JOIN])
EVENTS: Mapping[Topic, type[Any]] = {HARVESTED: Harvested, EATEN: Eaten}


def written(topic: Topic, crop: str, number: int, kilos: int) -> bytes:
    projection: Projection[Any, Sum] = HEAPED if topic == HARVESTED else COOKED
    return projection.event_codec.write(
        EVENTS[topic](kilos=kilos),
        event_id=f"{topic.name}-{number}",
        aggregate_id=crop,
        sequence=number + 1,
        occurred_at=NOON,
        correlation_id="c",
    )
