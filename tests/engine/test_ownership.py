"""Who gets which partitions when workers of two releases are in a group, as its leader, of either, assigns them."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.partition_assignor import PartitionAssignor
from yarl import URL

from shared.engine.versions import MixedReleases
from shared.group.assignor import TOLD, AbleAssignor
from shared.group.internals import EngineConsumer

SOURCE, ROWS, MORE = "shop.events.v1", "shop-totals-changelog", "shop-counts-changelog"
OLD, NEW, OTHER = {SOURCE, ROWS}, {SOURCE, ROWS, MORE}, {SOURCE, ROWS, "shop.other.v1"}
PARTITIONS = set(range(8))


class Cluster:
    def partitions_for_topic(self, _: str) -> set[int]:
        return PARTITIONS


class Member:
    """of_onefold: an assignor as before abilities were said, if not."""

    def __init__(self, name: str, topics: set[str], standbys: int = 0, *, of_onefold: bool = True) -> None:
        self.topics = topics
        self.warm: set[int] = set()
        app = SimpleNamespace(
            tracer=None,
            sensors=MagicMock(),
            conf=SimpleNamespace(canonical_url=URL(f"http://{name}")),
            tables=SimpleNamespace(changelog_topics=topics - {SOURCE}, data={}),
            abilities=frozenset(topics),
            topology=SimpleNamespace(service="shop"),
            warm=lambda: self.warm,
        )
        kind = AbleAssignor if of_onefold else PartitionAssignor
        self.assignor: Any = kind(cast(Any, app), standbys)

    @property
    def asks(self) -> ConsumerProtocolMemberMetadata:
        return self.assignor.metadata(self.topics)

    @property
    def owned(self) -> Mapping[str, set[int]]:
        places = self.assignor.assigned_actives()
        return {topic: {number for at, number in places if at == topic} for topic in self.topics}

    def catch_up(self) -> None:
        """Of all that it was given, it has a copy now that would take long to make."""
        copies = {*self.assignor.assigned_actives(), *self.assignor.assigned_standbys()}
        self.warm = {number for topic, number in copies if topic == ROWS}


def assign(leader: Member, **members: Member) -> dict[str, Any]:
    """The group assigns once; everybody but who is refused has it then."""
    asked = {name: member.asks for name, member in members.items()}
    given = leader.assignor.assign(cast(ClusterMetadata, Cluster()), asked)
    for name, member in members.items():
        if "refusal" not in _told(given[name]):
            member.assignor.on_assignment(given[name])
    return dict(given)


def _told(given: Any) -> dict[str, Any]:
    return dict(json.loads(zlib.decompress(given.user_data)).get(TOLD, {}))


@pytest.mark.parametrize("standbys", [0, 1])
def test_workers_of_one_release_are_assigned_as_faust_does(standbys: int) -> None:
    ours, fausts = (
        [Member(f"w{number}", OLD, standbys, of_onefold=of_onefold) for number in range(3)]
        for of_onefold in (True, False)
    )
    for count in (1, 3, 2):
        for some in (ours, fausts):
            assign(some[0], **{f"w{number}": some[number] for number in range(count)})
        for our, faust in zip(ours[:count], fausts, strict=False):
            assert our.assignor.assigned_actives() == faust.assignor.assigned_actives()
            assert our.assignor.assigned_standbys() == faust.assignor.assigned_standbys()
            assert our.assignor.changelog_distribution == faust.assignor.changelog_distribution


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("leads", ["old", "new"])
def test_a_later_release_takes_all_and_gives_it_back(leads: str, standbys: int) -> None:
    old, new = Member("old", OLD, standbys), Member("new", NEW, standbys)
    assign(old, old=old)
    assign({"old": old, "new": new}[leads], old=old, new=new)
    assert new.owned == dict.fromkeys(NEW, PARTITIONS)
    assert not old.assignor.assigned_actives()
    assert old.assignor.lacks == {MORE}
    assert set(old.assignor.changelog_distribution) == {"http://old", "http://new"}
    assign(old, old=old)
    assert old.owned == dict.fromkeys(OLD, PARTITIONS)
    assert not old.assignor.lacks


@pytest.mark.parametrize("standbys", [0, 1])
def test_those_that_can_do_most_share_the_partitions(standbys: int) -> None:
    old, *new = Member("old", OLD, standbys), Member("n1", NEW, standbys), Member("n2", NEW, standbys)
    assign(old, old=old, n1=new[0], n2=new[1])
    assert [len(each.owned[MORE]) for each in new] == [4, 4]
    assert len(new[0].assignor.assigned_standbys()) == standbys * 4 * len(NEW)


def test_the_newcomer_is_refused_where_each_can_do_something_that_the_other_cannot() -> None:
    first, other = Member("first", NEW), Member("other", OTHER)
    assign(first, first=first)
    given = assign(other, other=other, first=first)
    assert first.owned == dict.fromkeys(NEW, PARTITIONS)
    with pytest.raises(
        MixedReleases,
        match=f"they can handle {MORE}, .* it can handle shop.other.v1, .* fix: release what is new first",
    ):
        other.assignor.on_assignment(given["other"])


def test_an_assignment_for_a_former_release_of_the_worker_is_outdated() -> None:
    """A worker that is back within its session, as another release, is given what it had."""
    before, again = Member("w", OLD), Member("w", NEW)
    given = assign(before, w=before)
    assert not before.assignor.is_outdated
    again.assignor.on_assignment(given["w"])
    assert again.assignor.is_outdated
    assert again.asks != Member("w", NEW).asks  # else the group would not assign anew
    assign(again, w=again)
    assert not again.assignor.is_outdated


def test_workers_that_say_nothing_of_their_abilities_are_known_by_their_topics() -> None:
    before, new = Member("before", OLD, of_onefold=False), Member("new", NEW)
    assign(new, before=before, new=new)
    assert (before.owned[SOURCE], new.owned[SOURCE]) == (set(), PARTITIONS)


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_worker_owns_partitions_once_it_has_a_warm_copy_of_them(standbys: int) -> None:
    first, second = Member("first", OLD, standbys), Member("second", OLD, standbys)
    assign(first, first=first)
    first.catch_up()
    assign(first, first=first, second=second)
    assert (first.owned, second.owned[ROWS]) == (dict.fromkeys(OLD, PARTITIONS), set())
    assert len(second.assignor.awaited) == 4
    copies = {(topic, number) for topic, number in second.assignor.assigned_standbys()}
    assert copies >= {(ROWS, number) for number in second.assignor.awaited}
    second.catch_up()
    awaited = second.assignor.awaited
    assign(second, first=first, second=second)
    assert second.owned == dict.fromkeys(OLD, awaited)
    assert first.owned == dict.fromkeys(OLD, PARTITIONS - awaited)
    assert not second.assignor.awaited


def test_a_worker_whose_copy_was_cold_again_when_it_joined_asks_once_more() -> None:
    async def scenario() -> None:
        warm, joined = {3}, list[object]()
        consumer: Any = SimpleNamespace(should_stop=False, engine_assignment=None, sleep=lambda _: asyncio.sleep(0))
        consumer.app = SimpleNamespace(assignor=SimpleNamespace(awaited={3}), warm=lambda: warm)
        consumer._member = lambda: SimpleNamespace(
            _coordinator=SimpleNamespace(request_rejoin=lambda: joined.append(consumer.engine_assignment))
        )
        consumer._thread = SimpleNamespace(thread_loop=SimpleNamespace(call_soon_threadsafe=lambda ask: ask()))
        task = asyncio.create_task(cast(Any, EngineConsumer._join_when_warm).fun(consumer))
        assignments: list[object] = [object() for _ in range(3)]
        for consumer.engine_assignment in (None, *assignments):  # each time, its leader lets it wait
            for _ in range(10):
                await asyncio.sleep(0)
        assert joined == assignments
        consumer.should_stop = True
        await task

    asyncio.run(scenario())


@pytest.mark.parametrize("standbys", [0, 1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_nobody_restores_what_another_has_and_all_own_as_much_in_the_end(seed: int, standbys: int) -> None:
    chance = Random(seed)
    present: dict[str, Member] = {}
    for step in range(30):
        if present and chance.random() < 0.3:
            del present[chance.choice(sorted(present))]
        if len(present) < 4 and (not present or chance.random() < 0.5):
            present[f"w{step}"] = Member(f"w{step}", OLD, standbys)
        _assigned(chance, present)
        for member in present.values():
            if chance.random() < 0.5:
                member.catch_up()
    for _ in range(6):  # while any asks again
        for member in present.values():
            member.catch_up()
        _assigned(chance, present)
    owned = [len(member.owned[ROWS]) for member in present.values()]
    assert max(owned) - min(owned) <= 1
    assert not any(member.assignor.awaited for member in present.values())


def _assigned(chance: Random, present: Mapping[str, Member]) -> None:
    had = {number for member in present.values() for number in member.warm}
    assign(present[chance.choice(sorted(present))], **present)
    for member in present.values():
        assert member.owned[ROWS] == member.owned[SOURCE]
        assert not (member.owned[ROWS] & had) - member.warm
        copies = {number for topic, number in member.assignor.assigned_standbys() if topic == ROWS}
        assert not copies & member.owned[ROWS]
        assert copies >= member.assignor.awaited
        member.warm &= copies | member.owned[ROWS]
    owners = [number for member in present.values() for number in member.owned[ROWS]]
    assert sorted(owners) == sorted(PARTITIONS)
