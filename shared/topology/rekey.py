"""Events under other keys: which copies of an event a service needs, to count it by something but its aggregate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.ids import check_aggregate_id
from shared.domain.message import Event
from shared.domain.upcasting import Upcasters
from shared.topology.topics import Topic, check_name


class Rekey:
    """Copies events to topics of the service's own, byte for byte, under other keys, by which they are partitioned.

    keys       by target topic, the function (event) -> the keys of its copies there, one copy for each; an empty list
               for none. Each key is a legal aggregate id; any other parks the event.
    everywhere topics of which each partition gets a copy, under the key that the event has: they feed reference tables.
    source     the topic that it reads.
    events     the classes of events that it copies; others are skipped.
    upcasters  how older versions of these events are read, for `keys` to look at: copies stay as they were written.
    name       tells it from another Rekey of the same source; by default the source's name. Events that it cannot
               handle are parked under it, as `rekey.<name>`, so it is the same in every release. A view with a Rekey of
               its own can be filled without the copies of others being made again.

    Raises ValueError for events that `check_types` refuses, and for a name that a topic can't have.
    """

    def __init__(
        self,
        keys: Mapping[Topic, Callable[[EventEnvelope[Any]], Sequence[str]]] = MappingProxyType({}),
        *,
        source: Topic,
        events: Sequence[type[Event]],
        everywhere: Sequence[Topic] = (),
        upcasters: Upcasters | None = None,
        name: str = "",
    ) -> None:
        self.source = source
        self.events = tuple(events)
        self.name = name or source.name
        check_name(self.name)
        self.everywhere = tuple(everywhere)
        self.targets = (*keys, *self.everywhere)
        self._keys = {target.name: keys_of for target, keys_of in keys.items()}
        self._decode = EventCodec(events, upcasters).decode

    def copies(self, event: bytes | None) -> list[tuple[str, bytes]]:
        """The topic and the key of each copy of `event`.

        Raises BadMessage, UnknownType for an event that is not copied, or TypeError or ValueError for illegal keys.
        """
        envelope = self._decode(event)
        return [
            (target, _legal(target, key))
            for target, keys_of in self._keys.items()
            for key in _several(keys_of(envelope))
        ]


def _several(keys: Sequence[str]) -> Sequence[str]:
    if isinstance(keys, str):  # its characters would be taken for keys
        raise TypeError(
            f"the function of a Rekey gives a sequence of keys, not the text {keys!r}; fix: give [{keys!r}]"
        )
    return keys


def _legal(target: str, key: str) -> bytes:
    try:
        return check_aggregate_id(key).encode()
    except (AttributeError, ValueError) as error:  # it may be no text at all
        raise ValueError(
            f"a key for {target}: {error}; fix: leave it out, or give the field the type AggregateId in the command"
        ) from None
