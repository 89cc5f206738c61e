"""The private names of Faust and aiokafka that shared/group/internals.py uses exist and do what it expects."""

from __future__ import annotations

import ast
import asyncio
import errno
import inspect
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import BaseCoordinator, GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import (
    GroupLoadInProgressError,
    IllegalGenerationError,
    InvalidSessionTimeoutError,
    KafkaError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownError,
    UnknownMemberIdError,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from faust.assignor.partition_assignor import PartitionAssignor
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.worker import Worker
from mode.services import ServiceTask

from shared.engine.processors import AggregateProcessor
from shared.group import app, assignor, internals
from shared.kafka.transactions import group_metadata
from shared.runtime.settings import Settings, SettingsError
from shared.tables import store
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.private_names import is_pinned, is_there, overrides, takes

STREAMS = Path(internals.__file__).parent

# Each private name that internals.py uses, and the classes that must have it.
CONTRACT: dict[str, tuple[object, ...]] = {
    "_client": (AIOKafkaConsumer, BaseCoordinator),
    "_closing": (GroupCoordinator,),
    "_consumer": (driver.AIOKafkaConsumerThread,),
    "_coordination_task": (GroupCoordinator,),
    "_compress": (PartitionAssignor,),
    "_coordinator": (AIOKafkaConsumer,),
    "_decompress": (PartitionAssignor,),
    "_do_heartbeat": (GroupCoordinator,),
    "_ensure_consumer": (driver.AIOKafkaConsumerThread,),
    "_fetcher": (AIOKafkaConsumer,),
    "_generation_id": (Recovery,),
    "_group_instance_id": (GroupCoordinator,),
    "_get_client_metadata": (PartitionAssignor,),
    "_last_fetch_ended": (SubscriptionState,),
    "_metadata_snapshot": (BaseCoordinator,),
    "_new_consumer_thread": (driver.Consumer,),
    "_pending_exception": (GroupCoordinator,),
    "_perform_assignment": (GroupCoordinator, PartitionAssignor),
    "_proc_offset_request": (Fetcher,),
    "_publish_stats": (Recovery,),
    "_recovery": (TableManager,),
    "_rejoin_needed_fut": (GroupCoordinator,),
    "_restart_recovery": (Recovery,),
    "_resume_streams": (Recovery,),
    "_send_req": (GroupCoordinator,),
    "_sentinel_task": (Worker,),
    "_slurp_changelogs": (Recovery,),
    "_subscription": (AIOKafkaConsumer,),
    "_thread": (driver.Consumer,),
    "_update_channels": (TableManager,),
}

OVERRIDING = (
    assignor.AbleAssignor,
    internals.EngineConsumer,
    internals.EngineRecovery,
    internals.EngineTableManager,
    internals.EngineThread,
    internals.EngineTransport,
    internals.EngineWorker,
    internals.LogReader,
    app.RowTable,
    app.WithoutWeb,
    app.WorkerApp,
    store.RowStore,
)
OTHER_MEANING = {("RowStore", "get")}  # by partition and key; nothing in Faust calls it on a table's store


def test_internals_uses_no_private_name_that_is_not_listed() -> None:
    own = {name for name in _defined(STREAMS / "internals.py") if name not in CONTRACT}
    assert {name for _, name in _private_accesses(STREAMS / "internals.py")} - own <= CONTRACT.keys()


def test_other_modules_use_no_private_names_but_their_own() -> None:
    foreign = [
        f"{module.name}: {owner}.{name}"
        for module in STREAMS.glob("*.py")
        if module.name != "internals.py"
        for owner, name in _private_accesses(module)
        if owner not in ("self", "super()")
    ]
    assert foreign == []


@pytest.mark.parametrize("name", CONTRACT)
def test_a_private_name_is_there(name: str) -> None:
    for owner in CONTRACT[name]:
        assert is_there(owner, name), f"{owner} has no {name}"


@pytest.mark.parametrize("kind", OVERRIDING)
def test_an_override_takes_the_arguments_of_its_base(kind: type) -> None:
    for name, method, base in overrides(kind, OTHER_MEANING):
        assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(base), f"{kind.__name__}.{name}"
        assert takes(method, base), f"{kind.__name__}.{name}{inspect.signature(method)}: {inspect.signature(base)}"


def test_every_task_of_fausts_recovery_is_replaced() -> None:
    def tasks(kind: type) -> set[str]:
        return {name for name, member in vars(kind).items() if isinstance(member, ServiceTask)}

    assert tasks(Recovery) == tasks(internals.EngineRecovery)


def test_a_store_has_nothing_left_abstract() -> None:
    assert not getattr(store.RowStore, "__abstractmethods__", None)


def test_the_member_counts_as_busy_after_keep_alive() -> None:
    with asyncio.Runner() as runner:
        subscription = SubscriptionState(loop=runner.get_loop())
    subscription._last_fetch_ended = time.monotonic() - 60
    assert subscription.fetcher_idle_time >= 60
    thread = SimpleNamespace(_consumer=SimpleNamespace(_subscription=subscription))
    internals.keep_alive(cast(Any, SimpleNamespace(consumer=SimpleNamespace(_thread=thread))))
    assert subscription.fetcher_idle_time < 60


def test_the_assignor_names_the_owners_of_a_changelog() -> None:
    assert isinstance(inspect.getattr_static(PartitionAssignor, "changelog_distribution"), property)
    assignor = SimpleNamespace(changelog_distribution={"http://a": {"t-changelog": [0, 2]}, "http://b": {"u": [1]}})
    assert internals.owners(cast(Any, SimpleNamespace(assignor=assignor)), "t-changelog") == {
        0: "http://a",
        2: "http://a",
    }


def test_an_assignment_carries_the_generation_it_was_made_in() -> None:
    """By the time the engine handles it, the coordinator may be a generation ahead, or out of the group."""
    consumer = _consumer(generation=8, member_id="m-1")
    assignment = consumer._assignment_for_engine(7)
    assert assignment is not None
    assert assignment.member == group_metadata("accounts", 7, "m-1")
    assert assignment.active == {TP("commands", 0)}


@pytest.mark.parametrize(("generation", "member_id"), [(-1, ""), (-1, "m-1"), (7, "")])
def test_a_member_that_was_dropped_takes_over_nothing(generation: int, member_id: str) -> None:
    """The broker does not fence commits with generation -1 and no member id."""
    assert _consumer(generation, member_id)._assignment_for_engine(generation) is None


@pytest.mark.parametrize("package", ["faust-streaming", "mode-streaming", "aiokafka"])
def test_the_versions_are_the_pinned_ones(package: str) -> None:
    assert is_pinned(package)


def _consumer(generation: int, member_id: str) -> Any:
    """An EngineConsumer whose coordinator is at `generation`, without a thread or a connection."""
    coordinator = SimpleNamespace(generation=generation, member_id=member_id)
    assignor = SimpleNamespace(
        assigned_actives=lambda: {TP("commands", 0), TP("other", 0)},
        assigned_standbys=lambda: set(),
        is_outdated=False,
        lacks=frozenset(),
    )
    consumer = object.__new__(internals.EngineConsumer)
    consumer.app = cast(
        Any,
        SimpleNamespace(
            conf=SimpleNamespace(id="accounts", consumer_group_instance_id=None),
            assignor=assignor,
            engine_topics={"commands"},
        ),
    )
    member = SimpleNamespace(_coordinator=coordinator)
    consumer._thread = cast(Any, SimpleNamespace(_ensure_consumer=lambda: member))
    return consumer


def _private_accesses(module: Path) -> Iterator[tuple[str, str]]:
    """(expression, name) of every use of a private attribute."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            yield ast.unparse(node.value), node.attr


def _defined(module: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, kinds)}


@pytest.mark.parametrize("session_s", [1.5, 300])
def test_the_group_may_take_as_long_as_a_session_to_answer(session_s: float) -> None:
    processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)]
    conf = app.WorkerApp(TOPOLOGY, processors, Settings(session_timeout_s=session_s), cast(Any, None)).conf
    assert conf.broker_request_timeout > max(conf.broker_session_timeout, conf.broker_rebalance_timeout)


@pytest.mark.parametrize("session_s", [1.5, 300])
def test_a_lease_ends_before_the_group_goes_on_without_the_worker(session_s: float) -> None:
    processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)]
    worker = app.WorkerApp(TOPOLOGY, processors, Settings(session_timeout_s=session_s), cast(Any, None))
    assert worker.lease_s < min(worker.conf.broker_session_timeout, worker.conf.broker_rebalance_timeout)


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        (AssertionError(), "start the worker again once ONEFOLD_SESSION_TIMEOUT_S"),
        (InvalidSessionTimeoutError(), "set ONEFOLD_SESSION_TIMEOUT_S to what the brokers allow"),
        (None, "start the worker again"),
    ],
    ids=["another address", "a session too short", "unknown"],
)
def test_a_worker_that_its_group_refuses_is_told_what_to_do(cause: BaseException | None, fix: str) -> None:
    refusal = KafkaError("Unexpected error during coordination AssertionError()")
    refusal.__cause__ = cause
    assert internals.fix_of(refusal).startswith(fix)


@pytest.mark.anyio
async def test_a_member_that_still_looks_for_its_group_has_not_left_it() -> None:
    """As on a slow machine, for more than a second after its start."""
    member = AIOKafkaConsumer()
    assert internals.refusal_in(member) is None
    await member.stop()


def test_a_folder_for_stores_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else RocksDB, or a bare "Permission denied", would end the worker."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(app, "require_topics", lambda *_: None)
    processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)]
    worker = app.WorkerApp(TOPOLOGY, processors, Settings(data_dir=tmp_path / "file"), cast(Any, None))
    with pytest.raises(SettingsError, match=f"{tmp_path}/file/accounts-1 cannot be written: Not a directory; fix: "):
        asyncio.run(worker.on_first_start())


def test_a_full_disk_is_not_taken_for_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(app, "require_topics", lambda *_: None)
    monkeypatch.setattr(app, "TemporaryFile", lambda **_: Full())
    processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)]
    worker = app.WorkerApp(TOPOLOGY, processors, Settings(data_dir=tmp_path), cast(Any, None))
    with pytest.raises(SettingsError, match="No space left on device; fix: make room on its disk"):
        asyncio.run(worker.on_first_start())


class FakeCoordinator:
    """aiokafka's, of a member whose group answers its commits with `code`."""

    group_id, generation, member_id = "accounts", 7, "m-1"

    def __init__(self, alive: bool = True, rejoining: bool = False, code: int | None = 0) -> None:
        self.coordinator_id: int | None = 1
        self.committed: list[Any] = []
        self._rejoin_needed_fut = asyncio.get_running_loop().create_future()
        if rejoining:
            self._rejoin_needed_fut.set_result(None)
        self._alive, self._code = alive, code
        self._client = SimpleNamespace(send=self._send)

    async def _do_heartbeat(self) -> bool:
        return self._alive

    async def _send(self, broker: int, request: OffsetCommitRequest) -> object:
        self.committed.append((broker, request))
        if self._code is None:
            raise NodeNotReadyError
        return SimpleNamespace(topics=[("dead", [(0, self._code)])])


async def beat(coordinator: Any, times: int = 1, every_s: float = 0.0) -> list[float]:
    """The send times of heartbeats that proved the membership."""
    proven: list[float] = []
    internals.note_proofs(coordinator, "dead", every_s, proven.append)
    for _ in range(times):
        await coordinator._do_heartbeat()
        await settle()
    return proven


async def settle() -> None:
    """Lets the other tasks go on until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("alive", "rejoining", "code", "proofs"),
    [
        (True, False, 0, 1),
        (True, True, 0, 0),
        (False, False, 0, 0),
        (True, False, GroupLoadInProgressError.errno, 0),
        (True, False, NotCoordinatorForGroupError.errno, 0),
        (True, False, IllegalGenerationError.errno, 0),
        (True, False, None, 0),  # it does not answer
    ],
)
def test_only_a_stable_group_that_logs_a_commit_counts_this_member_in(
    alive: bool, rejoining: bool, code: int | None, proofs: int
) -> None:
    async def test() -> None:
        assert len(await beat(FakeCoordinator(alive, rejoining, code))) == proofs

    asyncio.run(test())


@pytest.mark.parametrize("generation", [-1, 7])
def test_a_commit_of_a_member_that_is_dropped_proves_nothing(generation: int) -> None:
    """An empty group takes commits of nobody; and the answer to an earlier one may come late."""

    class Dropped(FakeCoordinator):
        async def _send(self, broker: int, request: OffsetCommitRequest) -> object:
            self.generation = -1
            return await super()._send(broker, request)

    async def test() -> None:
        coordinator = Dropped()
        coordinator.generation = generation
        assert await beat(coordinator) == []

    asyncio.run(test())


def test_a_commit_to_the_next_coordinator_is_no_proof_of_the_last_ones_answer() -> None:
    async def test() -> None:
        coordinator = FakeCoordinator()

        async def moves() -> bool:
            coordinator.coordinator_id = 2
            return True

        coordinator._do_heartbeat = moves  # type: ignore[method-assign]
        assert await beat(coordinator) == []

    asyncio.run(test())


def test_a_member_commits_no_position_and_not_with_each_heartbeat() -> None:
    async def test() -> None:
        coordinator = FakeCoordinator()
        assert len(await beat(coordinator, times=3, every_s=60.0)) == 1
        ((broker, request),) = coordinator.committed
        assert (broker, request._topics[0][1][0][1]) == (1, -1)
        assert (request._consumer_group_generation_id, request._consumer_id) == (7, "m-1")

    asyncio.run(test())


HEARTBEAT = HeartbeatRequest("accounts", 7, "m-1")
SYNC = SyncGroupRequest("accounts", 7, "m-1", None, [])
JOIN = JoinGroupRequest("accounts", 10_000, 15_000, "m-1", "accounts-1", "consumer", [])


def test_a_lease_begins_when_the_assignment_is_requested() -> None:
    """The answer may have waited unread while the process was frozen."""
    asked: list[float] = []

    async def send(request: object) -> object:
        assert len(asked) == isinstance(request, SyncGroupRequest)
        return request

    async def join() -> None:
        coordinator = SimpleNamespace(_send_req=send)
        internals.note_syncs(coordinator, asked.append)
        for request in (HEARTBEAT, SYNC):
            assert await coordinator._send_req(request) is request

    asyncio.run(join())
    assert asked


@pytest.mark.parametrize("asked", [HEARTBEAT, SYNC, JOIN])
@pytest.mark.parametrize(
    ("answered", "expelled"),
    [
        (UnknownMemberIdError.errno, True),
        (IllegalGenerationError.errno, True),
        (82, True),  # FENCED_INSTANCE_ID
        (RebalanceInProgressError.errno, False),
        (NotCoordinatorForGroupError.errno, False),
        (0, False),
    ],
)
def test_a_member_that_the_group_does_not_know_any_more_is_expelled(
    asked: object, answered: int, expelled: bool
) -> None:
    noted: list[str] = []

    async def send(request: object) -> object:
        return SimpleNamespace(error_code=answered)

    coordinator = SimpleNamespace(_send_req=send)
    internals.note_expulsion(coordinator, lambda: noted.append("expelled"))
    assert asyncio.run(coordinator._send_req(asked)).error_code == answered
    assert noted == ["expelled"] * expelled


@pytest.mark.parametrize(
    ("answered", "told"),
    [(0, ["extended"]), (RebalanceInProgressError.errno, []), (UnknownMemberIdError.errno, ["ended"])],
)
def test_aiokafkas_heartbeats_extend_and_end_the_lease(
    answered: int, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    engine = SimpleNamespace(extend_lease=lambda _: seen.append("extended"), end_lease=lambda: seen.append("ended"))
    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "on_start", AsyncMock())

    async def test() -> None:
        coordinator: Any = object.__new__(GroupCoordinator)
        coordinator.group_id, coordinator.generation, coordinator.member_id = "accounts", 7, "m-1"
        coordinator.coordinator_id = 1
        coordinator._rejoin_needed_fut = asyncio.get_running_loop().create_future()
        coordinator._send_req = AsyncMock(return_value=SimpleNamespace(error_code=answered))
        coordinator._client = FakeCoordinator()._client
        thread: Any = object.__new__(internals.EngineThread)
        thread.app = SimpleNamespace(engine=engine, engine_topics=(), topology=TOPOLOGY, lease_s=1.0)
        thread.consumer = SimpleNamespace(note_sync=None)
        thread._ensure_consumer = lambda: SimpleNamespace(_coordinator=coordinator)
        await thread.on_start()
        await coordinator._do_heartbeat()
        await settle()

    asyncio.run(test())
    assert seen == told


@pytest.mark.parametrize("asked", [SYNC, JOIN])
def test_a_member_joins_again_when_the_group_cannot_be_written(asked: object) -> None:
    """Two of three brokers are away: aiokafka takes the coordinator's "unknown error" for final."""
    lost: list[str] = []

    async def send(request: object) -> object:
        return SimpleNamespace(error_code=-1)

    async def join() -> None:
        coordinator = SimpleNamespace(_send_req=send, coordinator_dead=lambda: lost.append("coordinator"))
        internals.join_again(coordinator)
        await coordinator._send_req(HEARTBEAT)
        assert not lost
        with pytest.raises(UnknownError):
            await coordinator._send_req(asked)

    asyncio.run(join())
    assert lost == ["coordinator"]


def test_a_leader_that_does_not_know_all_topics_can_stop() -> None:
    async def assign() -> None:
        stopping = asyncio.get_running_loop().create_future()
        stopping.set_result(None)
        coordinator: Any = SimpleNamespace(
            _perform_assignment=AsyncMock(), _metadata_snapshot={"rows": 0}, _closing=stopping
        )
        internals.assign_all(coordinator)
        with pytest.raises(KafkaError, match="the member stops while it waits"):
            await coordinator._perform_assignment(None)

    asyncio.run(assign())
