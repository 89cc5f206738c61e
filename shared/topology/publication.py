"""Public events: what other teams read of a service's own events, as CloudEvents with a schema of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.ids import derived_id
from shared.domain.message import Event, check_types
from shared.domain.personal import personal_fields
from shared.domain.upcasting import Upcasters
from shared.topology.topics import Topic

CONTENT_TYPE = "application/json"


class Published(NamedTuple):
    """An encoded public event: the record's headers, by CloudEvents' binary mode for Kafka, and its value."""

    headers: tuple[tuple[str, bytes], ...]
    body: bytes


class Publication:
    """Which public event follows from one of a service's own events. The engine runs it as it does a policy.

    publish    (event) -> the public event; None if there is none. It is pure.
    source     the service's own topic of events that it reads.
    events     the classes of events that it publishes; others are skipped.
    topic      the service's own topic `<service>.public.v<major>`, which gets the public events under the same keys.
    public     the classes of all public events: Events of their own, none of which is one of `events`. Any other parks
               the event. A VERSION is part of the CloudEvents type, `order.confirmed.v1`, and what was published under
               it never changes but for new fields with a default; another version goes to a topic of its own.
    upcasters, from_start, historical
               as those of a Policy.

    Raises ValueError for classes that `check_types` refuses, and for a public event that is one of `events` or has a
    personal field: nobody outside could decrypt it.
    """

    def __init__(
        self,
        publish: Callable[[EventEnvelope[Any]], Event | None],
        *,
        source: Topic,
        events: Sequence[type[Event]],
        topic: Topic,
        public: Sequence[type[Event]],
        upcasters: Upcasters | None = None,
        from_start: bool = False,
        historical: bool = False,
    ) -> None:
        check_types(public)
        for each in public:
            _refuse_private(each, events, topic)
        self.publish = publish
        self.source = source
        self.events = tuple(events)
        self.topic = topic
        self.public = tuple(public)
        self.from_start = from_start
        self.historical = historical
        self._decode = EventCodec(events, upcasters).decode
        self._of = f"/{topic.name.split('.')[0]}"

    @property
    def parked_under(self) -> str:
        """The name under which records are parked that it cannot handle."""
        return f"publication.{self.topic.name}"

    def published(self, event: bytes | None) -> Published | None:
        """What follows from `event`, the same every time; None for nothing.

        Raises BadMessage, UnknownType for an event that is not published, or TypeError for what `public` lacks.
        """
        envelope = self._decode(event)
        if envelope.historical and not self.historical:
            return None
        public = self.publish(envelope)
        if public is None:
            return None
        if type(public) not in self.public:
            fix = "add it to the public events of its Publication"
            raise TypeError(f"{self.parked_under} publishes {type(public).__name__}; fix: {fix}")
        attributes = {
            "ce_specversion": "1.0",
            "ce_id": derived_id(self.topic.name, envelope.event_id),
            "ce_source": self._of,
            "ce_type": public_type(type(public)),
            "ce_subject": envelope.aggregate_id,
            "ce_time": f"{envelope.occurred_at.isoformat().removesuffix('+00:00')}Z",
            "content-type": CONTENT_TYPE,
        }
        return Published(tuple((name, value.encode()) for name, value in attributes.items()), to_json(public))


def public_type(public: type[Event]) -> str:
    """Its CloudEvents type, such as `order.confirmed.v1`."""
    return f"{public.TYPE}.v{public.VERSION}"


def _refuse_private(public: type[Event], events: Sequence[type[Event]], topic: Topic) -> None:
    if public in events:
        raise ValueError(
            f"{topic.name}: {public.__name__} is an event of the domain, which could never change again; "
            f"fix: publish a class of its own"
        )
    if personal := sorted(personal_fields(public)):
        raise ValueError(
            f"{topic.name}: {public.__name__}.{personal[0]} is personal, and nobody outside has the key; "
            f"fix: leave it out, and serve it over HTTP to who may see it"
        )
