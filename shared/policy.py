"""What a policy answers an event with."""

from typing import NamedTuple

from shared.es.message import Command
from shared.topology import Topic


class Send(NamedTuple):
    """A command for an aggregate of this or another service."""

    topic: Topic
    aggregate_id: str
    command: Command
