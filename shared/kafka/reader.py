"""Reads committed records of the partitions, and from the offsets, that the caller chooses; it joins no group."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from shared.kafka.access import ANSWER_S, client_config
from shared.runtime.positions import Place

log = structlog.get_logger(__name__)

LEADERS_S = 1.0  # a take-over waits for the answer

_READER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # records that retention removed are an error, not skipped
    "check.crcs": True,
    # Only a few megabytes wait here, mostly in the CPU's cache; by default 64. A longer record is still fetched.
    "max.partition.fetch.bytes": 128 << 10,
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 4 << 10,
    "fetch.queue.backoff.ms": 1,  # 1 s by default, long enough to run out of fetched records
    "fetch.wait.max.ms": 100,  # how long a resumed partition, or the news of an end, can wait for other records
    "fetch.error.backoff.ms": 100,
    "topic.metadata.refresh.interval.ms": int(ANSWER_S * 1000),  # else it would ask a silent broker again
    "debug": "topic",  # see _Log
}
_NEW_ID = re.compile(r"Topic (\S+) changed id from (\S+) to ")
_NO_ID = "A" * 22  # of a topic that was not known yet
_TRANSIENT = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a broker that has just started knows less than its clients
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_FIXES: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant this service's principal READ on the topic",
}


class ReadRecord(Struct, frozen=True, gc=False):
    """timestamp: in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class OffsetGone(Exception):
    """The log does not have the next offset to read, or no longer; or a seek to it is not possible at the moment."""


class ReadRefused(Exception):
    """Records can't be read, and to continue could skip some.

    Operator action: do what the message says, then start the worker again.
    """


class _Log:
    """librdkafka's log without its lines for debugging: one of them alone tells that a topic was made again.

    It fetches by the id that a topic had when it last asked, and goes on with a new one without a word to the
    application (a FIXME in rd_kafka_topic_metadata_update). The line is served before the new topic's records are.
    """

    def __init__(self) -> None:
        self.made_again: set[str] = set()

    def log(self, level: int, text: str, *arguments: object) -> None:
        if level > logging.DEBUG:
            logging.getLogger("librdkafka").log(level, text, *arguments)
        elif (found := _NEW_ID.search(text % arguments)) and found[2] != _NO_ID:
            self.made_again.add(found[1])


class Reader:
    """For one task on one event loop. librdkafka fetches and parses outside the interpreter lock."""

    def __init__(self, bootstrap: str, group: str) -> None:
        """group: librdkafka needs one and looks for its coordinator, but the reader neither joins it nor commits."""
        self._log = _Log()
        self._consumer = Consumer({**client_config(bootstrap), **_READER, "group.id": group, "logger": self._log})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._learned: set[str] = set()
        self._positions: dict[Place, int] = {}
        self._paused: set[Place] = set()

    async def learn(self, topics: Collection[str]) -> None:
        """Ask for the leaders of topics that are about to be assigned.

        librdkafka asks for those that it does not know once a second, and a new worker would read nothing till then.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._learn, set(topics) - self._learned)

    def _learn(self, topics: Iterable[str]) -> None:
        with suppress(KafkaException):
            for topic in topics:
                self._consumer.list_topics(topic, LEADERS_S)
                self._learned.add(topic)

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these partitions from now on, each from its offset, and nothing else."""
        self.resume(*self._paused)  # librdkafka keeps partitions paused across assignments
        self._positions = dict(positions)
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])

    def assignment(self) -> set[Place]:
        return set(self._positions)

    def seek(self, place: Place, offset: int) -> None:
        """Continue at `offset`. Only after a record or the end of the partition was read. Raises OffsetGone."""
        self._positions[place] = offset
        try:
            self._consumer.seek(TopicPartition(*place, offset))
        except KafkaException as refusal:  # the partition is not being fetched, as after its leader has moved
            raise OffsetGone(f"{place}: {refusal}") from refusal

    def pause(self, *places: Place) -> None:
        new = set(places) - self._paused
        self._paused |= new
        self._consumer.pause(_partitions(new))

    def resume(self, *places: Place) -> None:
        old = self._paused & set(places)  # for others, librdkafka would drop the fetched records and fetch them again
        self._paused -= old
        self._consumer.resume(_partitions(old))

    def paused(self) -> set[Place]:
        return set(self._paused)

    def position(self, place: Place) -> int:
        """The next offset to read. At the partition's end, offsets without a record are passed, too."""
        return self._positions[place]

    def highwater(self, place: Place) -> int:
        """The partition's end as of the last fetch, 0 before the first."""
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        except KafkaException:  # its leader is not known yet
            return 0
        return max(0, end)

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[Place, list[ReadRecord]]:
        """The fetched records by partition; if none, the first to arrive. If cancelled, only `stop` may follow.

        Raises OffsetGone or ReadRefused, after which partitions have to be assigned again.
        """
        messages = self._consumer.consume(max_records, 0)
        if not messages:
            loop = asyncio.get_running_loop()
            first = await loop.run_in_executor(self._thread, self._consumer.poll, timeout_ms / 1000)
            # with a time-out, consume() would wait for all max_records
            messages = [] if first is None else [first, *self._consumer.consume(max_records - 1, 0)]
        return self._by_partition(messages)

    async def stop(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        self._consumer.close()

    def _by_partition(self, messages: Sequence[Any]) -> dict[Place, list[ReadRecord]]:
        """Each offset once, in order, even if librdkafka reads some again when leaders move. Raises ReadRefused."""
        if self._log.made_again:
            raise ReadRefused(
                f"{min(self._log.made_again)} was deleted while this worker ran, and made again; fix: run `provision`, "
                f"then start it again"
            )
        found: dict[Place, list[ReadRecord]] = {}
        records: list[ReadRecord] = []
        place, position = Place("", -1), 0
        for message in messages:
            if message.error() is not None:
                self._note(message)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if partition != place.number or topic != place.topic:
                place = Place(topic, partition)
                records = found.setdefault(place, [])
                position = records[-1].offset + 1 if records else self._positions[place]
            if offset >= position:
                position = offset + 1
                key, value, (_, timestamp) = message.key(), message.value(), message.timestamp()
                records.append(ReadRecord(topic, partition, offset, key, value, timestamp))
        found = {place: records for place, records in found.items() if records}
        for place, records in found.items():
            self._positions[place] = max(self._positions[place], records[-1].offset + 1)
        return found

    def _note(self, message: Any) -> None:
        error: KafkaError = message.error()
        place = Place(message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            self._positions[place] = max(self._positions[place], message.offset())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise OffsetGone(f"{place}: {error.str()}")
        elif not error.fatal() and (message.topic() is None or error.code() in _TRANSIENT):
            log.info("reading from the brokers is tried again", reason=f"{error.str()} ({error.name()})")
        else:
            fix = _FIXES.get(error.code(), "start the worker again")
            raise ReadRefused(f"{message.topic()}: {error.str()} ({error.name()}); fix: {fix}")


def _partitions(places: Collection[Place]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]
