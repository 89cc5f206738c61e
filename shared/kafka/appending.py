"""Records at the end of a partition, each once, by a task that may be run again, even while it still runs elsewhere."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from shared.domain.errors import OnefoldError
from shared.kafka.brokers import BrokersUnavailable, explained
from shared.kafka.producer import REFUSALS, producer_config
from shared.kafka.spans import Span, read
from shared.runtime.positions import Place

AT_ONCE = 10_000  # records of a transaction
_BYTES_AT_ONCE = 16 << 20
_CALL_S = 30.0
_PATIENCE_S = 3600  # with brokers that are away
_LOST = {
    *REFUSALS,
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def appending_config(bootstrap: str) -> dict[str, Any]:
    """For `Appending`, also in other processes; it lacks `transactional.id`."""
    config = producer_config(bootstrap, queue_buffering_max_kbytes=256 << 10)
    del config["logger"]
    return config


class AppendedElsewhere(OnefoldError):
    """Other records are at the end of a partition than those of this task, which appends nothing more there.

    Operator action: keep the service's workers stopped, then run it again.
    """


def fence(bootstrap: str, transactional_ids: Iterable[str]) -> None:
    """Ends whoever appends under these ids, and aborts what it has not committed. Raises BrokersUnavailable."""
    config = appending_config(bootstrap)
    for each in transactional_ids:
        try:
            Producer({**config, "transactional.id": each}).init_transactions(_CALL_S)
        except KafkaException as failure:
            raise explained(bootstrap, failure) from failure


class Appending:
    """Nobody else may write there, but who was to append the same records from `start`: that one is fenced, and what it
    has committed is not written again.
    """

    def __init__(self, config: dict[str, Any], client: Mapping[str, Any], place: Place, start: int) -> None:
        self._config, self._client, self._place, self._start = config, client, place, start
        self._producer: Producer | None = None
        self._there = 0  # of these records
        self._found = array("q")  # the hash of each that was there when the producer began

    def all(self, records: Iterable[tuple[bytes, bytes]]) -> int:
        """How many there are. Raises AppendedElsewhere, KafkaException, or BrokersUnavailable after an hour."""
        done = 0
        for chunk in _chunks(records):
            self._ensure(chunk, done)
            done += len(chunk)
        return done

    def _ensure(self, chunk: list[tuple[bytes, bytes]], before: int) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                producer = self._begun()
                self._refuse_others(self._found[before : before + len(chunk)], chunk)
                self._write(producer, chunk[max(0, self._there - before) :])
                self._there = max(self._there, before + len(chunk))
                return
            except (KafkaException, BrokersUnavailable) as failure:
                self._producer = None
                lost = isinstance(failure, KafkaException) and failure.args[0].code() in _LOST
                if lost or time.monotonic() > give_up:
                    raise

    def _begun(self) -> Producer:
        if self._producer is None:
            producer = Producer(self._config)
            producer.init_transactions(_CALL_S)
            with closing(Consumer({**self._client, "group.id": "nobody"})) as asking:
                _, end = asking.get_watermark_offsets(TopicPartition(*self._place), _CALL_S)
            found = read(self._client, Span(self._place, self._start, end))
            hashes = (hash(each) for chunk in found for each in zip(chunk.keys, chunk.values, strict=True))
            self._found, self._producer = array("q", hashes), producer
            self._there = len(self._found)
        return self._producer

    def _refuse_others(self, found: array[int], chunk: list[tuple[bytes, bytes]]) -> None:
        if any(there != hash(each) for there, each in zip(found, chunk, strict=False)):
            where = f"{self._place.topic}, partition {self._place.number}"
            fix = "keep the service's workers stopped, then run this again"
            raise AppendedElsewhere(f"{where}: somebody else has written there meanwhile; fix: {fix}")

    def _write(self, producer: Producer, records: list[tuple[bytes, bytes]]) -> None:
        if not records:
            return
        producer.begin_transaction()
        for key, value in records:
            while True:
                try:
                    producer.produce(self._place.topic, value, key, self._place.number)
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.1)
        producer.commit_transaction(_CALL_S)


def _chunks(records: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk, size = list[tuple[bytes, bytes]](), 0
    for key, value in records:
        chunk.append((key, value))
        size += len(value)
        if len(chunk) == AT_ONCE or size > _BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
