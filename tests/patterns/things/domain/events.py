"""The events of a thing."""

from shared.domain import Event


class ThingCreated(Event):
    TYPE = "thing.created"

    title: str


class ThingRenamed(Event):
    TYPE = "thing.renamed"

    title: str


class ThingClosed(Event):
    TYPE = "thing.closed"


ThingEvent = ThingCreated | ThingRenamed | ThingClosed
