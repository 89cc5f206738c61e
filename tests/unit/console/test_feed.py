"""What viewers are sent: each frame once, whenever they come, and nothing where nothing is new."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from shared.console import watch
from shared.console.feed import Feed
from shared.console.watch import Watcher
from shared.stories.tail import Newest


def test_a_frame_is_sent_once_to_each_viewer_who_is_there_or_comes() -> None:
    shown, looks = b"a", 0
    often = asyncio.Event()

    async def look() -> bytes:
        nonlocal looks
        looks += 1
        if looks == 10:
            often.set()
        return shown

    async def watch() -> None:
        nonlocal shown
        feed, over = Feed(look, 0.0), asyncio.get_running_loop().create_future()
        async with aclosing(feed.frames(over)) as first, aclosing(feed.frames()) as second:
            assert await anext(first) == b"a"
            coming = asyncio.ensure_future(anext(first))
            await often.wait()
            assert not coming.done()
            assert await anext(second) == b"a"
            shown = b"b"
            assert (await coming, await anext(second)) == (b"b", b"b")
            coming = asyncio.ensure_future(anext(first))
            over.set_result(None)
            with pytest.raises(StopAsyncIteration):
                await coming
        assert feed._looking is None

    asyncio.run(asyncio.wait_for(watch(), 30))


def test_where_nothing_is_new_no_picture_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "COUNTED_EVERY_S", 1e9)
    newest = [Newest(seen=1)]
    watcher = Watcher([], dict, dict, lambda: newest[-1])

    async def look() -> None:
        first = await watcher.look()
        while b'"doctor":{' not in first:
            first = await watcher.look()
        assert await watcher.look() is first
        newest.append(Newest(seen=2))
        assert b'"seen":2' in await watcher.look()

    asyncio.run(look())
