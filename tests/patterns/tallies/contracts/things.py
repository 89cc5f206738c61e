"""Things as tallies sees it: of its events, the fields that are used here. Others are ignored."""

from shared.domain import Event


class ThingCreated(Event):
    TYPE = "thing.created"
