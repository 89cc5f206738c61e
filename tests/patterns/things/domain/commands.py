"""The commands of a thing. A title may be any text here; `decide` refuses an empty one."""

from shared.domain import Command


class CreateThing(Command):
    TYPE = "thing.create"

    title: str


class RenameThing(Command):
    TYPE = "thing.rename"

    title: str


class CloseThing(Command):
    TYPE = "thing.close"


ThingCommand = CreateThing | RenameThing | CloseThing
