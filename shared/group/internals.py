"""Every private name of Faust and aiokafka that this project relies on; tests/engine/test_internals.py checks them.

Faust keeps what it is good at: membership, the co-partitioned assignment with standbys, the changelog topics and the
CLI. Its consumer subscribes to the engine's topics so that they are assigned, but never reads them; its table recovery
hands the assignment to the engine instead of restoring tables itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import CancelledError
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, cast

import faust
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.consumer.group_coordinator import UNKNOWN_OFFSET
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
    UnknownError,
    UnknownMemberIdError,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service

from shared.engine.membership import Assignment
from shared.engine.versions import MixedReleases
from shared.group.assignor import AbleAssignor
from shared.kafka.access import ANSWER_S
from shared.kafka.offsets import OffsetsUnknown
from shared.kafka.transactions import group_metadata
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place

if TYPE_CHECKING:
    from shared.group.app import WorkerApp

log = structlog.get_logger(__name__)

HEED_S = 1.0
WARM_S, COLD_S = 0.1, 30.0  # between looks at copies, at first and at most
ASK_AGAIN_S = 0.2  # for topics that the brokers don't tell of
PROOFS = 3  # of its membership, in the time of a lease

_FENCED_INSTANCE_ID = 82  # aiokafka has no name for it
_EXPELLED = frozenset({UnknownMemberIdError.errno, IllegalGenerationError.errno, _FENCED_INSTANCE_ID})

_FIXES: Mapping[type[BaseException], str] = {
    GroupAuthorizationFailedError: "grant this service's principal READ on its group",
    InvalidSessionTimeoutError: "set ONEFOLD_SESSION_TIMEOUT_S to what the brokers allow: their "
    "group.min.session.timeout.ms, 6 s unless it is set, to group.max.session.timeout.ms",
    InconsistentGroupProtocolError: "stop the consumers that use the service's name as their group and are no workers",
    # Faust's, where a member of this name was killed, and had another address or other tables
    AssertionError: "start the worker again once ONEFOLD_SESSION_TIMEOUT_S have passed, or give it its former address "
    "or another ONEFOLD_INSTANCE",
}


class EngineThread(driver.AIOKafkaConsumerThread):
    """Notes how long the group surely counts this member in."""

    app: WorkerApp
    consumer: EngineConsumer

    async def on_start(self) -> None:
        await super().on_start()
        coordinator = self._ensure_consumer()._coordinator
        note_proofs(
            coordinator, self.app.topology.dead_letters.name, self.app.lease_s / PROOFS, self.app.engine.extend_lease
        )
        note_syncs(coordinator, self.consumer.note_sync)
        note_expulsion(coordinator, self.app.engine.end_lease)
        join_again(coordinator)
        assign_all(coordinator)

    async def leave(self) -> None:
        """The others of the group are given the partitions from now on. Returns when the group knows, or can't be told.

        A static member never leaves by itself: its partitions would wait for the session time-out.
        """
        if self._consumer is None:
            return
        coordinator = self._consumer._coordinator
        coordinator._group_instance_id = None
        leaving = asyncio.run_coroutine_threadsafe(coordinator.close(), self.thread_loop)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(leaving), ANSWER_S)


def note_proofs(coordinator: Any, topic: str, every_s: float, proven: Callable[[float], None]) -> None:
    """Call `proven` with the send time of a heartbeat, at most once in `every_s`, after which the group has logged
    that it counts this member in.

    The answer to a heartbeat is no proof: a coordinator that still loads its log gives it to anybody, and one that was
    superseded gives it from memory. A commit under this member's id and generation is, as only the present coordinator
    can write it; but a rebalancing group accepts it too, and goes on without a member that does not rejoin in time.
    Hence both, from one broker. What is committed is "no position" in a topic that the group does not read.
    """
    beat = coordinator._do_heartbeat
    proved = -inf
    proving: asyncio.Task[None] | None = None  # beside the heartbeats: a group that can't be written answers late

    async def prove(sent: float, broker: int) -> None:
        nonlocal proved
        if await _commits(coordinator, broker, Place(topic, 0), note=""):
            proved = sent
            proven(sent)

    async def noted() -> bool:
        nonlocal proving
        sent, broker = elapsed_s(), coordinator.coordinator_id
        alive: bool = await beat()
        stable = alive and not coordinator._rejoin_needed_fut.done() and coordinator.coordinator_id == broker
        if stable and sent - proved >= every_s and (proving is None or proving.done()):
            proving = asyncio.create_task(prove(sent, broker))
        return alive

    coordinator._do_heartbeat = noted


async def _commits(coordinator: Any, broker: int, place: Place, note: str) -> bool:
    """Commit a note for this member, with "no position". Whether this broker could write it to the group's log.

    Not if the group drops the member meanwhile, or has done so: while it is empty, it takes commits of nobody.
    """
    generation = coordinator.generation
    member = coordinator.group_id, generation, coordinator.member_id
    positions = [(place.topic, [(place.number, UNKNOWN_OFFSET, note)])]
    request = OffsetCommitRequest(*member, OffsetCommitRequest.DEFAULT_RETENTION_TIME, positions)
    with suppress(KafkaError):  # also if there is no coordinator now
        ((_, ((_, error_code),)),) = (await coordinator._client.send(broker, request)).topics
        return bool(error_code == 0 and coordinator.generation == generation >= 0)
    return False


def note_syncs(coordinator: Any, asked: Callable[[float], None]) -> None:
    """Call `asked` with the time at which an assignment is asked for: nobody knows how long its answer waits here."""
    send = coordinator._send_req

    async def noted(request: Any) -> Any:
        if isinstance(request, SyncGroupRequest):
            asked(elapsed_s())
        return await send(request)

    coordinator._send_req = noted


def note_expulsion(coordinator: Any, expelled: Callable[[], None]) -> None:
    """Call `expelled` when the group answers that it does not know this member: others may own its partitions.

    Not when it rebalances: then it still counts the member in, and waits for it.
    """
    send = coordinator._send_req

    async def noted(request: Any) -> Any:
        answer = await send(request)
        asks_as_member = isinstance(request, HeartbeatRequest | JoinGroupRequest | SyncGroupRequest)
        if asks_as_member and answer.error_code in _EXPELLED:
            expelled()
        return answer

    coordinator._send_req = noted


def join_again(coordinator: Any) -> None:
    """Let a member try again that the group answers "unknown error", as it does while too few brokers can write.

    aiokafka would give up, and the worker end.
    """
    send = coordinator._send_req

    async def sent(request: Any) -> Any:
        answer = await send(request)
        if isinstance(request, JoinGroupRequest | SyncGroupRequest) and answer.error_code == UnknownError.errno:
            log.warning("the group answers with an unknown error, joining it again; its coordinator's log may say why")
            coordinator.coordinator_dead()  # it is asked for again, after a pause
            raise UnknownError
        return answer

    coordinator._send_req = sent


def assign_all(coordinator: Any) -> None:
    """Let the group's leader assign nothing until its brokers have told it of all topics that the members ask for.

    One that lags behind does not know a new topic yet; Faust would assign the others without it, a source without its
    rows. If it takes as long as a session, the group goes on without this member, under another leader.
    """
    perform = coordinator._perform_assignment

    async def performed(response: Any) -> Any:
        while True:
            assignments = await perform(response)
            found = coordinator._metadata_snapshot  # the numbers of partitions that this assignment came from
            missing = sorted(topic for topic, partitions in found.items() if partitions == 0)
            if not missing:
                return assignments
            log.warning("not assigned yet: the brokers do not tell of all topics, asking again", missing=missing)
            stops, _ = await asyncio.wait([coordinator._closing], timeout=ASK_AGAIN_S)
            if stops:
                raise KafkaError("the member stops while it waits to assign")
            await coordinator._client.force_metadata_update()

    coordinator._perform_assignment = performed


class GroupRefused(Exception):
    """This worker is out of its group and would stay out until it is restarted.

    Operator action: do what the message says, then start the worker again.
    """


def refusal_in(member: AIOKafkaConsumer | None) -> BaseException | None:
    """Why this member has left its group, if it has. Faust never asks, and aiokafka does nothing until asked."""
    coordinator: Any = None if member is None else member._coordinator
    if coordinator is None:
        return None  # it is still asking the brokers where its group is
    task = coordinator._coordination_task
    if task.done() and not task.cancelled():
        return cast(BaseException | None, task.exception())
    return cast(BaseException | None, coordinator._pending_exception)


def fix_of(refusal: BaseException) -> str:
    """aiokafka wraps what it does not expect."""
    for error in filter(None, (refusal, refusal.__cause__)):
        if fix := _FIXES.get(type(error)):
            return fix
    return "start the worker again"


class EngineConsumer(driver.Consumer):
    """A group member whose engine topics are read by the engine's own consumer."""

    app: WorkerApp
    engine_assignment: Assignment | None = None
    synced = 0.0  # when the last assignment was asked for

    def _new_consumer_thread(self) -> EngineThread:
        return EngineThread(self, loop=self.loop, beacon=self.beacon)

    @Service.task
    async def _watch_for_refusal(self) -> None:
        while not self.should_stop:
            await self.sleep(HEED_S)
            refusal = refusal_in(self._thread._consumer)
            if refusal is not None and not self.should_stop:
                if isinstance(refusal.__cause__, MixedReleases):
                    log.critical("the worker stops: its release does not fit its group", reason=str(refusal.__cause__))
                    raise refusal.__cause__
                reason = f"{refusal!r}; fix: {fix_of(refusal)}"
                log.critical("the worker stops: its group does not let it in", reason=reason)
                raise GroupRefused(reason) from refusal

    @Service.task
    async def _join_when_warm(self) -> None:
        """The group's leader gives this worker what it awaits when it joins with a warm copy of that.

        While a group assigns, nobody reads, and a copy may be cold by then: so it asks again, more and more rarely.
        """
        asked: Assignment | None = None
        awaited, pause_s = frozenset[int](), WARM_S
        while not self.should_stop:
            await self.sleep(pause_s)
            before, awaited = awaited, frozenset(_assignor_of(self.app).awaited)
            if awaited != before:
                asked, pause_s = None, WARM_S
                if awaited:
                    waits = "others own partitions until this worker has a warm copy of them"
                    log.info(waits, partitions=sorted(awaited))
            now = self.engine_assignment
            if awaited and now is not None and now is not asked and awaited <= self.app.warm():
                asked, pause_s = now, min(2 * pause_s, COLD_S)
                self._thread.thread_loop.call_soon_threadsafe(self._member()._coordinator.request_rejoin)

    def note_sync(self, sent: float) -> None:
        self.synced = sent

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self.engine_assignment = None
        await self.app.engine.release()
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        self.engine_assignment = self._assignment_for_engine(generation_id)
        if self.engine_assignment is not None:
            self.app.engine.joined(self.engine_assignment, self.synced)
        ours = [TopicPartition(*tp) for tp in assigned if self._read_by_engine(tp)]
        self._member().pause(*ours)
        await super().on_partitions_assigned(assigned, generation_id)

    async def leave(self) -> None:
        """Release all partitions, and leave the group if its other workers are to take them."""
        await self.app.engine.leave()
        if self.app.settings.leave_on_stop:
            await cast(EngineThread, self._thread).leave()

    async def on_stop(self) -> None:
        await self.leave()
        await super().on_stop()

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        super().resume_partitions({tp for tp in tps if not self._read_by_engine(tp)})

    async def perform_seek(self) -> None:
        if any(not self._read_by_engine(tp) for tp in self.assignment()):
            await super().perform_seek()

    def verify_event_path(self, now: float, tp: TP) -> None:
        if not self._read_by_engine(tp):
            super().verify_event_path(now, tp)

    async def create_topic(self, topic: str, partitions: int, replication: int, **_: Any) -> None:
        """Topics are made by `provision`, never by a worker."""

    def _read_by_engine(self, tp: TP) -> bool:
        return tp.topic in self.app.engine_topics

    def _member(self) -> Any:
        """aiokafka's consumer inside Faust's consumer thread."""
        return self._thread._ensure_consumer()

    def _assignment_for_engine(self, generation_id: int) -> Assignment | None:
        """The engine's part of the new assignment; None when the group has dropped this member meanwhile.

        Built while the coordinator waits for us: later, these partitions could be paired with the next generation's
        number, or with -1, for which the broker fences nothing. None, too, when it was made for another release:
        then the group assigns again.
        """
        member_id = self._member()._coordinator.member_id
        if generation_id < 0 or not member_id:
            return None
        conf, assignor = self.app.conf, _assignor_of(self.app)
        if assignor.is_outdated:
            self._thread.thread_loop.call_soon_threadsafe(self._member()._coordinator.request_rejoin)
            return None
        member = group_metadata(conf.id, generation_id, member_id, conf.consumer_group_instance_id)
        active, standby = assignor.assigned_actives(), assignor.assigned_standbys()
        ours = self._for_engine(active), self._for_engine(standby)
        return Assignment(*ours, member, generation_id, member_id, assignor.lacks)

    def _for_engine(self, tps: set[TP]) -> frozenset[Place]:
        return frozenset(Place(*tp) for tp in tps if self._read_by_engine(tp))


class LogReader(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer outside any group, which can be stopped at any time: also while a leader refuses connections."""

    async def stop(self) -> None:
        """Returns when no connection is left. A caller that is cancelled meanwhile stays cancelled.

        Hence the task of its own: while aiokafka waits for the end of its tasks, it swallows a cancellation, or passes
        on that of a task, and nobody could tell which.
        """
        ending = asyncio.create_task(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            raise

    def leader(self, place: Place) -> int | None:
        """The id of the broker that leads it; None while that is not known."""
        return cast("int | None", self._client.cluster.leader_for_partition(TopicPartition(*place)))

    async def learn_leaders(self, topics: Collection[str]) -> None:
        """Returns once a broker has told who leads them, or none answers. From then on that is kept up to date."""
        for topic in topics:
            self._client.add_topic(topic)
        await self._client.force_metadata_update()

    async def ends_at(self, leader: int, places: Iterable[Place]) -> dict[Place, int]:
        """Their ends, from this broker alone. Raises KafkaError.

        `end_offsets` waits for news of the leaders first, which may be asked of a broker that is silent.
        """
        asked = defaultdict(list)
        for topic, partition in places:
            asked[topic].append((partition, OffsetResetStrategy.LATEST))
        try:
            answer = await self._fetcher._proc_offset_request(leader, asked)
        except KafkaError:
            self._client.force_metadata_update()  # another may lead by now
            raise
        return {Place(*tp): offset for tp, (offset, _) in answer.items()}

    async def _end(self) -> None:
        try:
            # aiokafka cancels a fetch that waits to be tried again, and raises the fetch's CancelledError
            with suppress(asyncio.CancelledError):
                await super().stop()
        finally:
            await self._client.close()  # not reached in that case; otherwise it does nothing


class EngineTransport(driver.Transport):
    Consumer = EngineConsumer


class EngineRecovery(Recovery):
    """Gives each new assignment to the engine and lets Faust's own streams continue at once."""

    app: WorkerApp

    @Service.task
    async def _restart_recovery(self) -> None:
        while not self.should_stop:
            if await self.wait_for_stopped(self.signal_recovery_start):  # type: ignore[arg-type]
                return
            self.signal_recovery_start.clear()
            generation = self._generation_id
            assignment = _consumer_of(self.app).engine_assignment
            if assignment is None:
                continue  # the next rebalance has begun
            await self.app.engine.assign(assignment)
            await self._resume_streams(generation_id=generation)

    @Service.task
    async def _slurp_changelogs(self) -> None:
        """The engine reads the changelogs."""

    @Service.task
    async def _publish_stats(self) -> None:
        """The engine reports its restores."""


class EngineTableManager(TableManager):
    async def on_start(self) -> None:
        """At once: Faust gives agents a second to declare tables, and ours were declared with the app."""
        await self._update_channels()
        await self.recovery.start()

    @property
    def recovery(self) -> Recovery:
        if self._recovery is None:
            self._recovery = EngineRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery


class EngineWorker(faust.Worker):
    async def _sentinel_task(self) -> None:
        """Faust lets a stopped loop run for one more second."""


def keep_alive(app: WorkerApp) -> None:
    """Tell aiokafka that records are being handled; otherwise the member leaves after max_poll_interval."""
    member = _consumer_of(app)._thread._consumer
    if member is not None:
        member._subscription._last_fetch_ended = time.monotonic()


def sign(app: WorkerApp, place: Place, note: str) -> None:
    """Commit a note for the group's member, without a position. Blocking: not on a loop. Raises OffsetsUnknown."""
    thread = _consumer_of(app)._thread
    coordinator = thread._ensure_consumer()._coordinator
    # confluent-kafka reads a note up to the first NUL, even beyond its end
    commit = _commits(coordinator, coordinator.coordinator_id, place, f"{note}\0")
    committing = asyncio.run_coroutine_threadsafe(commit, thread.thread_loop)
    with suppress(TimeoutError, CancelledError):  # the latter while the worker stops
        if committing.result(ANSWER_S):
            return
    committing.cancel()
    raise OffsetsUnknown("the group's coordinator takes no commit of this worker")


def owners(app: WorkerApp, changelog: str) -> Mapping[int, str]:
    """The URL of each partition's owner, as the group's leader gave it with the last assignment."""
    return {
        partition: url
        for url, topics in _assignor_of(app).changelog_distribution.items()
        for partition in topics.get(changelog, ())
    }


def members(app: WorkerApp) -> frozenset[str]:
    """The URL of every worker of the group, with and without partitions."""
    return frozenset(_assignor_of(app).changelog_distribution)


def awaited(app: WorkerApp) -> Set[int]:
    """The partitions that another worker owns until this one has a warm copy of them."""
    return _assignor_of(app).awaited


async def leave_group(app: WorkerApp) -> None:
    """Before all else of a worker that stops: others take its partitions while it closes what it has open."""
    await _consumer_of(app).leave()


def _consumer_of(app: WorkerApp) -> EngineConsumer:
    return cast(EngineConsumer, app.consumer)


def _assignor_of(app: WorkerApp) -> AbleAssignor:
    return cast(AbleAssignor, app.assignor)
