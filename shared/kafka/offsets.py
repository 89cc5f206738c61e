"""The brokers' offsets: those a group has committed, and the first and last of a partition; and the ids of topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription

from shared.kafka.access import ANSWER_S, GROUP_ERRORS, IN_NO_GROUP, client_config
from shared.runtime.positions import Place

Answer = TypeVar("Answer")

_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class OffsetsUnknown(Exception):
    """The brokers do not answer, or have no final answer yet; asking again can help."""


class Position(NamedTuple):
    """offset: the next that a group reads; None if it never committed one. note: what was committed with it."""

    offset: int | None
    note: str


class AccessRefused(Exception):
    """The brokers refuse this service's principal an answer, and will refuse it again.

    Operator action: do what the message says, then start the worker again.
    """


class Offsets:
    """Blocking look-ups. All raise OffsetsUnknown or AccessRefused.

    Each call uses a client of its own: a client that outlives a broker keeps asking its old leaders for minutes.
    """

    def __init__(self, bootstrap: str) -> None:
        self._config = client_config(bootstrap)

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        """The next offset `group` reads of each partition; None where it never committed. Raises as `positions`."""
        return {place: position.offset for place, position in self.positions(group, places).items()}

    def positions(self, group: str, places: Iterable[Place]) -> dict[Place, Position]:
        """All from one broker, which may have been superseded as the group's coordinator without having heard of it.

        Raises OffsetsUnknown while a predecessor's transaction is pending, because only its end makes the answer final.
        """
        wanted = [TopicPartition(*place) for place in places]
        if not wanted:
            return {}
        # Not with an admin client: for a group whose coordinator is lost, it ends the process (librdkafka issue 3663).
        # To a read_committed consumer the broker does not give pending offsets either, but asks it to wait.
        with closing(Consumer(self._config | {"group.id": group, "isolation.level": "read_committed"})) as consumer:
            try:
                found = consumer.committed(wanted, ANSWER_S)
            except KafkaException as failure:
                raise _typed(_denial(consumer) or failure.args[0]) from failure
        # with an error, the offset looks like "never committed"
        for error in (tp.error for tp in found if tp.error):
            raise _typed(error)
        return {place_of(tp): Position(None if tp.offset < 0 else tp.offset, tp.metadata or "") for tp in found}

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The high watermark of each partition: behind every record, also those of open transactions."""
        return self._listed(places, OffsetSpec.latest)

    def stable_ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The last stable offset of each partition: where the first open transaction begins, else its end."""
        return self._listed(places, OffsetSpec.latest, IsolationLevel.READ_COMMITTED)

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset each partition still has."""
        return self._listed(places, OffsetSpec.earliest)

    def any_records(self, places: Iterable[Place]) -> bool:
        """Whether one of them has, or had, a committed record; one with an end may have only aborted ones."""
        starts, ends = self.starts(places), self.ends(places)
        if any(starts.values()):
            return True
        unread = {place for place, end in ends.items() if end}
        with closing(Consumer({**self._config, **IN_NO_GROUP})) as consumer:
            consumer.assign([TopicPartition(*place, 0) for place in unread])
            while unread:
                found = consumer.poll(ANSWER_S)
                if found is None:
                    raise OffsetsUnknown(f"{min(unread).topic} can't be read")
                error = found.error()
                if error is None:
                    return True
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(Place(str(found.topic()), int(found.partition() or 0)))
                elif error.code() not in GROUP_ERRORS:
                    raise _typed(error)
        return False

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The id of each topic that exists: another once it was deleted and made again, and on any other cluster."""
        admin = AdminClient(self._config)
        return _answer(lambda: topic_ids(admin, topics))

    def out_of_sync(self, topics: Collection[str]) -> dict[Place, tuple[int, int]]:
        """Of each partition that misses copies: how many are in sync, and how many there should be."""
        admin = AdminClient(self._config)
        found = _answer(lambda: described(admin, topics))
        copies = {
            Place(topic, each.id): (len(each.isr), len(each.replicas))
            for topic, description in found.items()
            for each in description.partitions
        }
        return {place: (in_sync, wanted) for place, (in_sync, wanted) in copies.items() if in_sync < wanted}

    def _listed(
        self,
        places: Iterable[Place],
        spec: Callable[[], OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Place, int]:
        admin = AdminClient(self._config)
        return _answer(lambda: list_offsets(admin, places, spec, isolation))


def list_offsets(
    admin: AdminClient,
    places: Iterable[Place],
    spec: Callable[[], OffsetSpec],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    """The offset that `spec` asks for, by partition. Raises KafkaException or OffsetsUnknown."""
    wanted = {TopicPartition(*place): spec() for place in places}
    if not wanted:
        return {}
    # Without a connection librdkafka can't ask for leaders, and tries again after three seconds: so did each fourth of
    # new clients on a busy machine. This waits for one.
    admin.describe_cluster(request_timeout=ANSWER_S).result()
    futures: Mapping[TopicPartition, Future[Any]] = admin.list_offsets(
        wanted, isolation_level=isolation, request_timeout=ANSWER_S
    )
    found = {place_of(tp): future.result().offset for tp, future in futures.items()}
    # a leader that does not answer in time leaves its partitions at -1, without an error
    if silent := [place for place, offset in found.items() if offset < 0]:
        raise OffsetsUnknown(f"no leader answers for {len(silent)} partitions, {silent[0]} among them")
    return found


def place_of(found: TopicPartition) -> Place:
    return Place(found.topic, found.partition)


def topic_ids(admin: AdminClient, topics: Collection[str]) -> dict[str, str]:
    """The ids of those topics that exist. Raises KafkaException."""
    return {topic: str(found.topic_id) for topic, found in described(admin, topics).items()}


def described(admin: AdminClient, topics: Collection[str]) -> dict[str, TopicDescription]:
    """Those topics that exist. Raises KafkaException."""
    if not topics:
        return {}
    found = {}
    for topic, future in admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_S).items():
        try:
            found[topic] = future.result()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


def _answer(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except KafkaException as failure:
        raise _typed(failure.args[0]) from failure


def _denial(consumer: Consumer) -> KafkaError | None:
    """The brokers' refusal, which ends no look-up: librdkafka asks for the group's coordinator until time is up."""
    event = consumer.poll(0)
    error = event.error() if event is not None else None
    return error if error is not None and error.code() in _DENIED else None


def _typed(error: KafkaError) -> Exception:
    text = f"{error.str()} ({error.name()})"
    if error.code() in _DENIED:
        return AccessRefused(f"{text}; fix: `grant`, which gives each service's principal what it needs")
    return OffsetsUnknown(text)
