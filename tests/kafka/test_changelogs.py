"""Streams of one worker share a reader, and one that resumes misses and repeats nothing where it joins the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from shared.engine.processors import AggregateProcessor
from shared.group.app import WorkerApp
from shared.group.internals import LogReader
from shared.runtime.settings import Settings
from shared.tables import tail as changes_module
from shared.tables.feed import Feed
from shared.tables.tail import Changelogs
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

NOW: Mapping[int, int | None] = {0: None, 1: None}
FIRST: Mapping[int, int | None] = {0: -1, 1: -1}
DEADLINE_S = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Decoded(list[bytes]):
    """In place of a codec: rows are their bytes."""

    def decode(self, value: bytes) -> bytes:
        self.append(value)
        return value


class Consumers:
    """Makes them as a worker does, and counts them."""

    def __init__(self, bootstrap: str) -> None:
        processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)]
        self._app = WorkerApp(TOPOLOGY, processors, Settings(bootstrap=bootstrap), cast(Any, None))
        self.made = 0

    def __call__(self, **settings: Any) -> LogReader:
        self.made += 1
        return self._app.new_consumer(**settings)


@pytest.fixture
def consumers(bootstrap: str) -> Consumers:
    return Consumers(bootstrap)


async def keys(feed: Feed, count: int) -> list[bytes]:
    """Of the next changes, at least so many."""
    found: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += [change.key for change in await anext(feed.changes)]
    return found


async def test_streams_share_one_reader_that_decodes_only_what_they_want(
    topic: str, put: Callable[..., None], consumers: Consumers
) -> None:
    logs, decoded = Changelogs(consumers), cast(Any, Decoded())
    async with AsyncExitStack() as open_:
        feeds = [await open_.enter_async_context(logs.read(topic, 2, decoded, NOW, key)) for key in (b"b", b"b", b"c")]
        await asyncio.to_thread(put, b"a", b"b", b"a", b"c")
        assert [await keys(feed, 1) for feed in feeds] == [[b"b"], [b"b"], [b"c"]]
    assert (decoded, consumers.made) == ([b"b", b"c"], 1)
    async with logs.read(topic, 2, decoded, NOW) as feed:  # after the last has left, the next one reads again
        await asyncio.to_thread(put, b"d", partition=1)
        assert await keys(feed, 1) == [b"d"]


async def test_a_stream_that_resumes_joins_the_others_without_a_gap_or_a_repeat(
    topic: str, put: Callable[..., None], consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are written before it, while it catches up and after it."""
    monkeypatch.setattr(changes_module, "POLL_RECORDS", 3)
    logs, decoded = Changelogs(consumers), cast(Any, Decoded())
    written = [b"%d" % number for number in range(60)]

    def write(some: list[bytes]) -> None:
        for number, value in enumerate(some):
            put(value, partition=number % 2)

    await asyncio.to_thread(write, written[:20])
    async with logs.read(topic, 2, decoded, NOW) as live, logs.read(topic, 2, decoded, FIRST) as resumed:
        writing = asyncio.ensure_future(asyncio.to_thread(write, written[20:]))
        told = await keys(resumed, len(written))
        await writing
        assert sorted(told, key=int) == written
        for partition in (0, 1):
            assert [key for key in told if int(key) % 2 == partition] == written[partition::2]
        assert len(await keys(live, 40)) == 40
    assert consumers.made == 2


async def test_a_stream_that_takes_too_little_ends_and_the_others_go_on(
    topic: str, put: Callable[..., None], consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "WAITING_BYTES", 10)
    logs, decoded = Changelogs(consumers), cast(Any, Decoded())
    async with logs.read(topic, 2, decoded, NOW) as slow, logs.read(topic, 2, decoded, NOW, b"2") as quick:
        await asyncio.to_thread(put, b"1" * 20, b"2")
        assert await keys(quick, 1) == [b"2"]
        async with asyncio.timeout(DEADLINE_S):
            assert [changes async for changes in slow.changes] == []


async def test_streams_that_take_slowly_what_they_have_missed_keep_no_other_from_resuming(
    topic: str, put: Callable[..., None], consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "POLL_RECORDS", 1)
    logs, decoded, written = Changelogs(consumers), cast(Any, Decoded()), [b"1", b"2", b"3"]
    await asyncio.to_thread(put, *written)
    async with AsyncExitStack() as open_:
        for _ in range(changes_module.REPLAYS):
            slow = await open_.enter_async_context(logs.read(topic, 2, decoded, FIRST))
            assert await keys(slow, 1) == written[:1]
        async with logs.read(topic, 2, decoded, FIRST) as another:
            assert await keys(another, 3) == written


class Picky(Decoded):
    """Reads any row but one."""

    def decode(self, value: bytes) -> bytes:
        if value == b"bad":
            DECIDER.row_codec.decode(value)
        return super().decode(value)


async def test_a_row_that_cannot_be_read_ends_only_the_streams_that_would_show_it(
    topic: str, put: Callable[..., None], consumers: Consumers
) -> None:
    logs, codec = Changelogs(consumers), cast(Any, Picky())
    async with AsyncExitStack() as open_:
        feeds = [await open_.enter_async_context(logs.read(topic, 2, codec, NOW, key)) for key in (b"bad", None, b"c")]
        await asyncio.to_thread(put, b"bad", b"c")
        feeds.append(await open_.enter_async_context(logs.read(topic, 2, codec, FIRST)))
        other = feeds.pop(2)
        for feed in feeds:
            async with asyncio.timeout(DEADLINE_S):
                assert [changes async for changes in feed.changes] == []
        assert await keys(other, 1) == [b"c"]


async def test_an_offset_that_never_was_is_refused(topic: str, put: Callable[..., None], consumers: Consumers) -> None:
    await asyncio.to_thread(put, b"a")
    with pytest.raises(LookupError, match=r"partitions \[1\]"):
        async with Changelogs(consumers).read(topic, 2, cast(Any, Decoded()), {0: 0, 1: 5}):
            pass
