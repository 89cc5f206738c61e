"""Where topics begin and end, and which members and positions a group has."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from shared.domain.errors import OnefoldError
from shared.kafka.access import ABSENT_FIX, ANSWER_S, client_config
from shared.kafka.offsets import OffsetsUnknown, list_offsets, topic_ids
from shared.kafka.transactions import Record, TransactionAborted, TransactionalProducer, TransactionRefused, producer_id
from shared.runtime.positions import Place

Positions = dict[int, int]
"""Offset by partition."""


class Bounds(NamedTuple):
    """The offsets of a partition: of its first record, behind the last one that is final, and behind the last."""

    start: int
    stable: int
    end: int


Answer = TypeVar("Answer")

SETTLE_DEADLINE_S = 60.0  # long after an engine's transaction has ended, or was timed out by the broker
_PAUSE_S = 0.1
_TRANSIENT = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,  # a broker that has just started knows less than its clients
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a broker learns of a new topic a little later than others
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,  # a transaction is open, perhaps that of a worker that died
    }
)

_SILENT = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT})


class BrokersUnavailable(OnefoldError):
    """The brokers do not answer, or do not have what was asked for.

    Operator action: check that ONEFOLD_BOOTSTRAP names running brokers and that the topics are provisioned.
    """


class GroupIsLive(OnefoldError):
    """The consumer group has members, so its positions can't be set from outside.

    Operator action: stop the workers of this group, then try again.
    """


class Brokers:
    """Blocking look-ups, and commits for groups. Every method raises BrokersUnavailable."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient(client_config(bootstrap) | {"log_level": 0})

    def topic_ids(self, topics: Collection[str]) -> set[str]:
        """The ids of those topics that exist: the same under whatever address, and others on any other cluster.

        Two clusters may have the same id of their own, as containers of one image do.
        """
        return set(self.until_answered(lambda: topic_ids(self._admin, topics)).values())

    def partitions(self, topic: str) -> int:
        if not (found := self._partitions(topic)):
            raise BrokersUnavailable(f"{self.bootstrap} has no topic {topic}. Run `provision`.")
        return found

    def has(self, topic: str) -> bool:
        return self._partitions(topic) > 0

    def starts(self, topic: str) -> Positions:
        """The first offset each partition still has."""
        return self._listed(topic, OffsetSpec.earliest)

    def settled_ends(self, topic: str) -> Positions:
        """The ends as of this call, returned once no transaction that began below them is open.

        Everything below them is final, so a reader of committed records never has to wait before it reaches them.
        """
        ends = self._listed(topic, OffsetSpec.latest)
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        while open_ends := _open(self._listed(topic, OffsetSpec.latest, IsolationLevel.READ_COMMITTED), ends):
            if time.monotonic() > deadline:
                raise BrokersUnavailable(f"{topic}: a transaction stays open, from these offsets on: {open_ends}")
            time.sleep(_PAUSE_S)
        return ends

    def stable_ends(self, places: Collection[Place]) -> dict[Place, int]:
        return self._offsets(places, OffsetSpec.latest, IsolationLevel.READ_COMMITTED)

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        starts, ends = (self._offsets(places, spec) for spec in (OffsetSpec.earliest, OffsetSpec.latest))
        # after the ends, so that what has ended meanwhile does not look open
        stable = self.stable_ends(places)
        return {each: Bounds(starts[each], min(stable[each], ends[each]), ends[each]) for each in places}

    def positions(self, group: str) -> dict[str, Positions]:
        """The next offsets that `group` reads, by topic, where it has committed any; none are of open transactions."""
        self.members(group)  # waits for the coordinator: librdkafka can crash if asked for offsets while it loads
        positions: dict[str, Positions] = {}
        for tp in self.until_answered(lambda: self._committed(group)):
            if tp.offset >= 0:
                positions.setdefault(tp.topic, {})[tp.partition] = tp.offset
        return positions

    def members(self, group: str) -> tuple[str, ...]:
        """The group's present members, by instance and host."""
        return self.until_answered(lambda: self._members(group))

    def commit(self, group: str, positions: Mapping[str, Positions]) -> None:
        """Sets the positions of `group`, by topic. Raises GroupIsLive: the broker refuses a group with members."""
        wanted = [TopicPartition(*place, offset) for place, offset in by_place(positions).items()]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        self.until_answered(lambda: _checked(self._admin.alter_consumer_group_offsets(request)[group].result()))

    def commit_with(self, group: str, positions: Mapping[str, Positions], records: Sequence[Record]) -> None:
        """Sets the positions of `group`, which has no members, and writes `records`: both or neither."""
        with closing(Consumer(client_config(self.bootstrap) | {"group.id": group})) as nobody:
            try:
                producer = TransactionalProducer(self.bootstrap, producer_id(group, "begin"))
                producer.send(records)
                producer.commit(by_place(positions), nobody.consumer_group_metadata())
            except (TransactionAborted, TransactionRefused) as failure:
                raise BrokersUnavailable(f"{self.bootstrap}: {failure}") from failure

    def _partitions(self, topic: str) -> int:
        found = self.until_answered(lambda: self._admin.list_topics(timeout=ANSWER_S)).topics.get(topic)
        return len(found.partitions) if found is not None else 0

    def _listed(
        self,
        topic: str,
        spec: Callable[[], OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Positions:
        places = [Place(topic, number) for number in range(self.partitions(topic))]
        return {place.number: offset for place, offset in self._offsets(places, spec, isolation).items()}

    def _offsets(
        self,
        places: Collection[Place],
        spec: Callable[[], OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Place, int]:
        try:
            return self.until_answered(lambda: list_offsets(self._admin, places, spec, isolation))
        except OffsetsUnknown as failure:
            raise BrokersUnavailable(f"{self.bootstrap}: {failure}. Try again.") from failure

    def _members(self, group: str) -> tuple[str, ...]:
        future = self._admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group]
        try:
            found = future.result().members
        except KafkaException as failure:
            if failure.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return ()
            raise
        return tuple(sorted(f"{each.group_instance_id or each.client_id} on {each.host.strip('/')}" for each in found))

    def _committed(self, group: str) -> Sequence[TopicPartition]:
        future = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], require_stable=True, request_timeout=ANSWER_S
        )[group]
        return _checked(future.result())

    def until_answered(self, ask: Callable[[], Answer]) -> Answer:
        """The answer, once no transient error is left."""
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        while True:
            try:
                return ask()
            except KafkaException as failure:
                if failure.args[0].code() not in _TRANSIENT or time.monotonic() > deadline:
                    raise explained(self.bootstrap, failure) from failure
            time.sleep(_PAUSE_S)


def by_place(positions: Mapping[str, Positions]) -> dict[Place, int]:
    return {Place(topic, number): at for topic, some in positions.items() for number, at in some.items()}


def _checked(answer: ConsumerGroupTopicPartitions) -> Sequence[TopicPartition]:
    """The partitions in the answer. Raises KafkaException if one of them has an error, even if others have none."""
    found = answer.topic_partitions or []
    for error in (tp.error for tp in found if tp.error):
        raise KafkaException(error)
    return found


def explained(bootstrap: str, failure: KafkaException) -> OnefoldError:
    """The brokers' error as BrokersUnavailable or GroupIsLive."""
    error: KafkaError = failure.args[0]
    if error.code() in (KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID):
        return GroupIsLive(f"{error.str()}: stop its workers first")
    fix = f"; {ABSENT_FIX}" if error.code() in _SILENT else ""
    return BrokersUnavailable(f"{bootstrap}: {error.str()} ({error.name()}){fix}")


def _open(stable: Positions, ends: Positions) -> Positions:
    return {partition: stable[partition] for partition, end in ends.items() if stable[partition] < end}
