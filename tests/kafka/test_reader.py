"""A reader returns each committed record once, from the assigned position on, and nothing of other partitions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from shared.kafka import reader as reader_module
from shared.kafka.offsets import Offsets
from shared.kafka.reader import OffsetGone, Reader, ReadRecord, ReadRefused
from shared.runtime.positions import Place
from tests.waiting import Deadline, eventually

pytestmark = pytest.mark.broker

DEADLINE_S = 60.0
MANY = 20_000  # more than a reader buffers
T = TypeVar("T")


@asynccontextmanager
async def reading(bootstrap: str) -> AsyncIterator[Reader]:
    reader = Reader(bootstrap, "nobody")
    try:
        yield reader
    finally:
        await reader.stop()


async def read_until(reader: Reader, done: Callable[[list[ReadRecord]], bool], limit: int = 500) -> list[ReadRecord]:
    """All records that arrive until `done` says so."""
    found: list[ReadRecord] = []
    deadline = Deadline(DEADLINE_S)
    while not done(found):
        deadline.check(found[-3:])
        for place, records in (await reader.getmany(100, limit)).items():
            assert {(record.topic, record.partition) for record in records} == {place}
            found += records
    return found


def _same(value: T) -> T:
    return value


def offsets(records: list[ReadRecord]) -> list[int]:
    return [record.offset for record in records]


def test_committed_records_are_read_and_the_position_passes_markers_and_aborted_ones(
    bootstrap: str, topic: str, put: Callable[..., None]
) -> None:
    put(b"a", b"b")
    put(b"never", abort=True)
    put(b"c")
    put(b"never", b"never", abort=True)

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 0, Place(topic, 1): 0})
            found = await read_until(reader, lambda _: reader.position(Place(topic, 0)) == 10)
            assert [(record.offset, record.key, record.value) for record in found] == [
                (0, b"a", b"a"),
                (1, b"b", b"b"),
                (5, b"c", b"c"),
            ]
            assert all(record.timestamp > 1.6e12 for record in found)
            assert reader.highwater(Place(topic, 0)) == 10
            assert reader.position(Place(topic, 1)) == 0
            put(b"never", abort=True)
            assert await read_until(reader, lambda _: reader.position(Place(topic, 0)) == 12) == []

    asyncio.run(run())


def test_after_a_seek_or_an_assignment_no_record_fetched_before_is_returned(
    bootstrap: str, topic: str, put: Callable[..., None]
) -> None:
    put(*(b"%d" % number for number in range(MANY)))
    put(b"another partition's", partition=1)

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 0})
            for go in range(100):
                await read_until(reader, lambda found: len(found) > 3, limit=50)
                start = go * 37 % 1000
                if go % 2:
                    reader.seek(Place(topic, 0), start)
                else:
                    reader.assign({Place(topic, 0): start})
                found = await read_until(reader, lambda found: len(found) > 60, limit=50)
                assert offsets(found) == list(range(start, start + len(found)))
            reader.assign({Place(topic, 1): 0})
            assert reader.assignment() == {(topic, 1)}
            assert [record.value for record in await read_until(reader, bool)] == [b"another partition's"]

    asyncio.run(run())


def test_a_paused_partition_resumes_where_it_stopped(bootstrap: str, topic: str, put: Callable[..., None]) -> None:
    put(*(b"%d" % number for number in range(MANY)))
    rests, goes_on = Place(topic, 0), Place(topic, 1)

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({rests: 0, goes_on: 0})
            read = await read_until(reader, bool, limit=50)
            for _ in range(10):
                reader.pause(rests)
                assert reader.paused() == {rests}
                put(b"more", partition=1)
                assert {record.partition for record in await read_until(reader, bool)} == {1}
                reader.resume(rests, goes_on)
                read += await read_until(reader, lambda found: len(found) > 100, limit=50)
            read += await read_until(reader, lambda _: reader.position(rests) > MANY)
            assert offsets(read) == list(range(MANY))
            reader.pause(rests)
            reader.assign({rests: MANY - 1})
            assert reader.paused() == set()
            assert offsets(await read_until(reader, bool)) == [MANY - 1]

    asyncio.run(run())


def test_a_record_that_librdkafka_delivers_twice_is_read_once(bootstrap: str, topic: str) -> None:
    """Some of its releases delivered records twice when a leader moved."""

    def told(*offsets: int, partition: int = 0) -> list[SimpleNamespace]:
        fields = {
            "error": None,
            "topic": topic,
            "partition": partition,
            "key": b"k",
            "value": b"v",
            "timestamp": (1, 2),
        }
        each = [{**fields, "offset": offset} for offset in offsets]
        return [SimpleNamespace(**{name: partial(_same, of) for name, of in one.items()}) for one in each]

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 5, Place(topic, 1): 0})
            first = reader._by_partition([*told(5, 6), *told(3, partition=1), *told(6, 7, 9, 8)])
            assert {place: offsets(records) for place, records in first.items()} == {
                (topic, 0): [5, 6, 7, 9],
                (topic, 1): [3],
            }
            assert reader._by_partition(told(8, 9)) == {}
            assert reader.position(Place(topic, 0)) == 10

    asyncio.run(run())


@pytest.mark.parametrize("start", [1, 7])
def test_an_offset_that_is_not_in_the_log_is_reported(
    bootstrap: str, topic: str, put: Callable[..., None], start: int
) -> None:
    """Retention removed it, or it was never written. The partition can then be assigned anew."""
    put(b"a", b"b")
    put(b"c")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        deleted.result(30)

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): start})
            with pytest.raises(OffsetGone, match=f"{topic}/0"):
                await read_until(reader, bool)
            reader.assign({Place(topic, 0): 2})
            assert offsets(await read_until(reader, bool)) == [3]

    asyncio.run(run())


def test_seeking_in_a_partition_that_is_not_read_is_refused(bootstrap: str, topic: str) -> None:
    """It has to be assigned anew, as when its offset is gone."""

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 0})
            with pytest.raises(OffsetGone, match=f"{topic}/1"):
                reader.seek(Place(topic, 1), 0)

    asyncio.run(run())


def test_a_record_ends_the_wait_for_it(bootstrap: str, topic: str, put: Callable[..., None]) -> None:
    """The event loop goes on meanwhile."""
    put(b"a")

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 0})
            await read_until(reader, lambda _: reader.position(Place(topic, 0)) == 2)
            waits = asyncio.ensure_future(reader.getmany(int(2 * DEADLINE_S * 1_000), 500))
            await asyncio.to_thread(put, b"b")
            assert offsets((await asyncio.wait_for(waits, DEADLINE_S))[Place(topic, 0)]) == [2]

    asyncio.run(run())


def test_a_cancelled_wait_does_not_outlive_the_reader(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 0})
            waits = asyncio.ensure_future(reader.getmany(1_000, 500))
            await asyncio.sleep(0)
            waits.cancel()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]

    asyncio.run(run())


def test_no_record_of_a_topic_that_was_made_again_is_taken_for_one_of_the_former(
    bootstrap: str, topic: str, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka would go on behind the former one's offset, if the new one is longer by then."""
    monkeypatch.setitem(reader_module._READER, "fetch.error.backoff.ms", 5_000)  # it is longer
    admin, offsets = AdminClient({"bootstrap.servers": bootstrap}), Offsets(bootstrap)

    def make_again() -> None:
        admin.delete_topics([topic])[topic].result()
        eventually(lambda: offsets.topic_ids([topic]), lambda found: not found)
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
        producer = Producer({"bootstrap.servers": bootstrap})
        for _ in range(30):
            producer.produce(topic, b"new", partition=0)
        assert producer.flush(DEADLINE_S) == 0

    async def run() -> None:
        async with reading(bootstrap) as reader:
            reader.assign({Place(topic, 0): 0})
            await read_until(reader, lambda found: len(found) == 1)
            await asyncio.to_thread(make_again)
            await read_until(reader, lambda found: bool(found))

    put(b"former")
    with pytest.raises(ReadRefused, match=f"{topic} was deleted while this worker ran, and made again"):
        asyncio.run(run())
