"""The commands with which a policy answers an event. Their ids derive from the event's, so none takes effect twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shared.domain.envelope import EventCodec, EventEnvelope, encode, wrap
from shared.domain.ids import derived_id
from shared.domain.message import Command, Event, check_types
from shared.domain.upcasting import Upcasters
from shared.topology.topics import Topic


class Send(NamedTuple):
    """A command that a policy sends to an aggregate of this or another service.

    topic         the commands topic of that service.
    aggregate_id  whom it is for. An illegal id parks the event, so give the fields that it comes from the type
                  AggregateId in the commands that fill them.
    command       what is wanted. Nobody is told if it is refused: what a process waits for, the other side must answer
                  with an event (docs/adr/0003).
    """

    topic: Topic
    aggregate_id: str
    command: Command


class Sent(NamedTuple):
    """An encoded command, ready to be written."""

    topic: str
    key: bytes
    command_id: str
    body: bytes


class Policy:
    """Which commands follow from an event. The engine and Spark run it.

    react      (event) -> the commands to send, in their order; an empty list if there are none. It is pure, and is made
               with `def`, because records that it cannot handle are parked under its name, as `policy.<name>`: do not
               rename it while any are parked.
    source     the topic that it reads.
    events     the classes of events that it answers; others are skipped.
    commands   by target topic, the classes of all commands that it can send there. Any other parks the event.
    upcasters  how older versions of these events are read.
    from_start whether it answers all events of a source that the service has not read before, from the first one on. By
               default it begins at the present, when a worker first takes the source's partition over. A step of a
               process says so, which must not be left out of those that begin while the service is first started.
    historical whether it answers historical events, too, such as those that `backfill` has loaded. By default it passes
               over them: what was to follow from them has followed, wherever they happened.
    name       part of its commands' ids, so it must be the same in every release. If another policy, in this service or
               another, answers the same event with commands on the same topic, give one of them a name: equal ids are
               taken for a repeat, which has no effect.

    Raises TypeError for a function without a name, and ValueError for events or commands that `check_types` refuses.
    """

    def __init__(
        self,
        react: Callable[[EventEnvelope[Any]], Sequence[Send]],
        *,
        source: Topic,
        events: Sequence[type[Event]],
        commands: Mapping[Topic, Sequence[type[Command]]],
        upcasters: Upcasters | None = None,
        from_start: bool = False,
        historical: bool = False,
        name: str = "",
    ) -> None:
        if not hasattr(react, "__name__"):
            raise TypeError(f"{react!r} has no name to park records under; fix: give Policy a function made with `def`")
        self.react = react
        self.source = source
        self.events = tuple(events)
        self.from_start = from_start
        self.historical = historical
        self.name = name
        self._decode = EventCodec(events, upcasters).decode
        self._types = {event.TYPE for event in events}
        for types in commands.values():
            check_types(types)
        self.commands = commands
        self._declared = {(topic.name, each) for topic, types in commands.items() for each in types}

    def meets(self, other: Policy) -> bool:
        """Whether one event can make both send commands with the same id."""
        same = self.source == other.source and self.name == other.name
        return same and bool(self._types & other._types) and bool(self.commands.keys() & other.commands.keys())

    def sends(self, event: bytes | None) -> Iterator[Sent]:
        """The encoded commands that `event` leads to, the same every time.

        Raises BadMessage, UnknownType for an event that the policy does not answer, or TypeError for a command that
        `commands` lacks.
        """
        envelope = self._decode(event)
        if envelope.historical and not self.historical:
            return
        # with the source, because events of two services have the same id if their aggregate and command ids are equal
        origin = (self.source.name, envelope.event_id, *((self.name,) if self.name else ()))
        for index, send in enumerate(self.react(envelope)):
            if (send.topic.name, type(send.command)) not in self._declared:
                raise self._undeclared(send)
            command_id = derived_id(*origin, send.topic.name, send.aggregate_id, str(index))
            command = wrap(
                send.command,
                command_id=command_id,
                aggregate_id=send.aggregate_id,
                issued_at=envelope.occurred_at,
                correlation_id=envelope.correlation_id,
                causation_id=envelope.event_id,
            )
            yield Sent(send.topic.name, send.aggregate_id.encode(), command_id, encode(command))

    @property
    def parked_under(self) -> str:
        """The name under which records are parked that it cannot handle."""
        return f"policy.{self.react.__name__}"

    def _undeclared(self, send: Send) -> TypeError:
        what = f"{type(send.command).__name__} to {send.topic.name}"
        return TypeError(f"{self.parked_under} sends {what}: add it to the commands of its Policy")
