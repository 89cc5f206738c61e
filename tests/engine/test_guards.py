"""What the engine notices about itself: a skipped batch, a position that stands still, a row that grows, its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import structlog

from shared.engine import engine, guards
from shared.engine.engine import Engine, WorkCancelled
from shared.engine.guards import (
    LARGE_ROW_BYTES,
    STANDSTILL_S,
    STUCK_S,
    TOLD_S,
    Failures,
    GapGuard,
    GrowthGuard,
    OpenTransactions,
    Standstill,
    TopicGone,
    TopicGuard,
    Watchdog,
)
from shared.runtime.positions import Place
from tests.engine.test_leaving import DEADLINE_S, Going, Held, Reading, running
from tests.engine.test_leaving import PLACE as TAKEN
from tests.engine.test_turns import FACTS

PLACE, OTHER = Place("accounts.commands.v1", 0), Place("accounts.commands.v1", 1)
STEP_S = STANDSTILL_S / 3


def test_a_first_record_at_the_requested_offset_is_accepted() -> None:
    assert not GapGuard({PLACE: 7}).must_reread(PLACE, 7)


def test_a_gap_is_accepted_when_it_is_found_twice() -> None:
    guard = GapGuard({PLACE: 7})
    assert guard.must_reread(PLACE, 9)
    assert not guard.must_reread(PLACE, 9)
    assert PLACE not in guard.unseen


def test_a_batch_that_was_dropped_twice_is_read_in_the_end() -> None:
    guard = GapGuard({PLACE: 7})
    assert guard.must_reread(PLACE, 20)
    assert guard.must_reread(PLACE, 12)
    assert not guard.must_reread(PLACE, 7)


def test_a_beginning_is_expected_anew_wherever_reading_goes_on() -> None:
    guard = GapGuard({PLACE: 7})
    assert guard.must_reread(PLACE, 9)
    guard.expect(PLACE, 8)
    assert guard.must_reread(PLACE, 9)
    assert not guard.must_reread(PLACE, 8)
    guard.expect(PLACE, 20)
    assert guard.must_reread(PLACE, 21)


def test_a_position_that_advances_is_no_standstill() -> None:
    watchdog = Watchdog()
    for position in range(100):
        watchdog.check(position, {PLACE: position}, {PLACE: 1_000 + position}, position * STEP_S)


def test_a_position_without_new_records_is_no_standstill() -> None:
    """Only transaction markers may be left, or the brokers were unavailable."""
    watchdog = Watchdog()
    for step in range(10):
        watchdog.check(step, {PLACE: 5}, {PLACE: 9}, step * STEP_S)
    for step in range(10, 12):
        watchdog.check(step, {PLACE: 5}, {PLACE: 10}, step * STEP_S)


def test_a_position_that_stays_while_more_can_be_read_is_a_standstill() -> None:
    watchdog = Watchdog()
    for step in range(3):
        watchdog.check(step, {PLACE: 5, OTHER: step}, {PLACE: 5 + step, OTHER: step}, step * STEP_S)
    with pytest.raises(Standstill, match=r"accounts\.commands\.v1/0 has stayed at offset 5 .* up to 9; fix: start"):
        watchdog.check(3, {PLACE: 5, OTHER: 3}, {PLACE: 9, OTHER: 3}, 3 * STEP_S)


def test_work_that_does_not_go_on_is_a_standstill_although_nothing_waits() -> None:
    watchdog, steps = Watchdog(), int(STUCK_S / STEP_S) + 1
    for step in range(steps):
        watchdog.check(7, {}, {}, step * STEP_S)
    with pytest.raises(Standstill, match=r"its work has not gone on for 320 s; fix: start the worker again"):
        watchdog.check(7, {}, {}, steps * STEP_S)


def test_a_partition_that_comes_back_is_timed_anew() -> None:
    watchdog = Watchdog()
    watchdog.check(0, {PLACE: 5}, {PLACE: 5}, 0.0)
    watchdog.check(1, {}, {}, STEP_S)
    for step in range(2, 4):
        watchdog.check(step, {PLACE: 5}, {PLACE: 99 + step}, step * STEP_S)


def test_nothing_is_a_standstill_that_happened_while_nobody_watched() -> None:
    """The machine was suspended, or the brokers were away."""
    watchdog = Watchdog()
    watchdog.check(0, {PLACE: 5}, {PLACE: 5}, 0.0)
    watchdog.check(0, {PLACE: 5}, {PLACE: 99}, STUCK_S + STEP_S)


def test_a_transaction_is_told_once_it_has_been_open_for_long_and_the_next_one_is_timed_anew() -> None:
    guard = OpenTransactions()
    assert not guard.check({PLACE: 5, OTHER: 9}, {PLACE: 7, OTHER: 9}, 0.0)
    ((place, since, reason),) = guard.check({PLACE: 5, OTHER: 8}, {PLACE: 9, OTHER: 9}, TOLD_S)
    assert (place, since) == (PLACE, 0.0)
    assert "began at offset 5, holds back what follows up to 9; fix: `doctor` names" in reason
    assert not guard.check({PLACE: 6}, {PLACE: 9}, 2 * TOLD_S)


def test_a_failure_is_told_once_it_has_come_again_for_long_and_until_it_ends() -> None:
    failures = Failures()
    failures.note([PLACE, OTHER], "first", 0.0)
    failures.note([PLACE], "then", TOLD_S - 1)
    assert not failures.told(TOLD_S - 1)
    failures.ended([OTHER])
    assert failures.told(TOLD_S) == [(PLACE, 0.0, "then")]
    failures.keep_only([OTHER])
    assert not failures.told(2 * TOLD_S)


def test_a_topic_that_was_made_again_is_gone_at_once_and_one_that_is_missing_the_second_time() -> None:
    guard = TopicGuard()
    for found in ({"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "1"}):
        guard.check(found)
    with pytest.raises(TopicGone, match=r"^a was deleted while this worker ran; fix: run `provision`"):
        guard.check({"a": "3", "b": "2"})
    guard.check({"a": "1"})
    with pytest.raises(TopicGone, match=r"^b was deleted"):
        guard.check({"a": "1"})


def test_a_row_that_grows_is_logged_as_it_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "log", structlog.get_logger())  # one that was used before can't be captured
    guard, changelog, begin = GrowthGuard(), Place("accounts-accounts-changelog", 3), LARGE_ROW_BYTES
    with structlog.testing.capture_logs() as lines:
        for size in (0, begin - 1, begin, begin + 1, 2 * begin - 1, 2 * begin, 3 * begin):
            guard.check({changelog: {b"bob": None, b"ann": b"x" * size, b"eve": b""}})
    assert [line["size_bytes"] for line in lines] == [begin, 2 * begin]
    assert lines[0]["row"] == "accounts-accounts-changelog/3, key b'ann'"
    guard.check({changelog: {b"ann": b"x"}})
    assert guard.largest == {changelog.topic: 3 * begin}


def test_a_worker_whose_work_is_cancelled_stops_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a library that lets out the end of a task of its own. The worker would stay in its group and do nothing."""

    async def cancelled(*_: object, **__: object) -> dict[Any, Any]:
        raise asyncio.CancelledError

    monkeypatch.setattr(Reading, "getmany", cancelled)

    async def work() -> Engine:
        async with asyncio.timeout(DEADLINE_S), running(Going) as (engine, _):
            await engine.wait_until_stopped()
        return engine

    with structlog.testing.capture_logs() as lines:
        assert isinstance(asyncio.run(work()).crash_reason, WorkCancelled)
    assert [line["event"] for line in lines if line["log_level"] == "critical"] == [
        "the worker stops: its work was cancelled, and nobody stops it"
    ]


def test_work_that_is_cancelled_because_the_worker_stops_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def never(*_: object, **__: object) -> dict[Any, Any]:
        begun.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr(Reading, "getmany", never)

    async def work() -> Engine:
        async with asyncio.timeout(DEADLINE_S), running(Going) as (engine, _):
            await begun.wait()
        return engine

    with structlog.testing.capture_logs() as lines:
        assert not asyncio.run(work()).crashed
    assert not [line for line in lines if line["log_level"] == "critical"]


def test_batches_that_cannot_be_committed_are_told_with_the_copies_that_miss_and_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a partition with fewer copies in sync than its topic demands."""
    for module, name in ((guards, "STANDSTILL_S"), (guards, "TOLD_S"), (engine, "WATCH_S"), (engine, "RETRY_PAUSE_S")):
        monkeypatch.setattr(module, name, 0.01)
    asked, producer = threading.Semaphore(0), Held()
    producer.fails.set()

    def out_of_sync(offsets: Going, _topics: object) -> dict[Place, tuple[int, int]]:
        offsets.broker.append(FACTS.name, (b"a", b""), None)
        asked.release()
        return {Place("shop.events.v1", 3): (1, 3)}

    monkeypatch.setattr(Going, "out_of_sync", out_of_sync)

    async def work() -> Engine:
        async with asyncio.timeout(DEADLINE_S), running(Going, producer) as (worker, _):
            for _ in range(5):
                await asyncio.to_thread(asked.acquire, timeout=DEADLINE_S)
            assert [(each.place, each.reason) for each in worker.watch.troubles] == [
                (TAKEN, "batches can't be committed: timed out"),
                (
                    ("shop.events.v1", 3),
                    "1 of 3 copies are in sync, maybe too few to write; fix: start the brokers that hold the others",
                ),
            ]
        return worker

    assert not asyncio.run(work()).crashed
