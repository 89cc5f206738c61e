"""What the broker knows about positions: committed by a group, first and last of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

Partition = tuple[str, int]
REQUEST_TIMEOUT_S = 10.0


class OffsetsUnknown(Exception):
    """The brokers do not answer, or not with a final answer yet; asking again can help."""


class Offsets:
    """Blocking look-ups. All raise OffsetsUnknown."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def committed(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """The next offset `group` reads of each partition; None where it never committed.

        Unknown while a predecessor's transaction is pending: only its end makes the answer final.
        """
        wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
        if not wanted:
            return {}
        request = ConsumerGroupTopicPartitions(group, wanted)
        future = self._admin.list_consumer_group_offsets(
            [request], require_stable=True, request_timeout=REQUEST_TIMEOUT_S
        )[group]
        found = _answer(future).topic_partitions
        # UNSTABLE_OFFSET_COMMIT comes as the error of a partition, beside an offset that looks like "never committed"
        for error in (tp.error for tp in found if tp.error):
            raise OffsetsUnknown(f"{error.str()} ({error.name()})")
        return {(tp.topic, tp.partition): None if tp.offset < 0 else tp.offset for tp in found}

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The high watermark of each partition: behind every record, those of open transactions included."""
        return self._listed(partitions, OffsetSpec.latest)

    def starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset each partition still has."""
        return self._listed(partitions, OffsetSpec.earliest)

    def _listed(self, partitions: Iterable[Partition], spec: Callable[[], OffsetSpec]) -> dict[Partition, int]:
        wanted = {TopicPartition(topic, partition): spec() for topic, partition in partitions}
        if not wanted:
            return {}
        futures: Mapping[TopicPartition, Future[Any]] = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_TIMEOUT_S
        )
        return {(tp.topic, tp.partition): _answer(future).offset for tp, future in futures.items()}


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result()
    except KafkaException as failure:
        raise OffsetsUnknown(f"{failure.args[0].str()} ({failure.args[0].name()})") from failure
