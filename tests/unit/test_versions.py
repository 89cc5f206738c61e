"""Routes as records make them, and the rows of two versions at the same positions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request
from fastapi.exceptions import RequestValidationError

from shared.dev.versions import SHOWN, compared
from shared.domain.errors import NotReady
from shared.domain.row import Row, RowCodec
from shared.engine.batch import Batch
from shared.engine.holdings import Holdings
from shared.engine.sources import Source
from shared.engine.turns import TOGETHER_S, Turns
from shared.engine.versions import supersedes
from shared.http.node import Node
from shared.http.versions import acting_elsewhere, other_version, owner_in
from shared.operations.versions import Compared, Differing, RowsAt, Versions, VersionsRefused, compare_rows
from shared.parking.parked import PARKED_CODEC, Parked
from shared.runtime.positions import Place
from shared.runtime.routes import TURN, Active, Role, Routes, Turn, owner_key
from shared.runtime.settings import Settings
from shared.topology import Service, Topology
from tests.accounts.service import SERVICE as DECIDES
from tests.versions.tallies import tallies
from tests.versions.tills import PARTITIONS, tills

ENCODE = RowCodec[dict[str, int]](dict[str, int]).encode
HERE = "http://127.0.0.1:8001"


def routes(*, active: Active | None = None, owners: dict[tuple[int, int], str] | None = None) -> Routes:
    found = Routes()
    found.read = True
    if active is not None:
        found.apply(*active.record)
    for place, url in (owners or {}).items():
        found.apply(owner_key(*place), url.encode())
    return found


def asked(node: Any, version: str | None = None, *, hop: bool = False) -> int | None:
    headers = [] if version is None else [(b"onefold-version", version.encode())]
    scope = {"type": "http", "headers": headers, "onefold.peer": object() if hop else None}
    return other_version(Request(scope), cast(Node, node))


def node(found: Routes | None, version: int = 1) -> Any:
    return SimpleNamespace(topology=tallies(version).topology, routes=found)


def test_all_versions_of_a_service_have_the_same_routes() -> None:
    assert tallies(2).topology.routes == tallies(1).topology.routes
    assert tallies(1).topology.routes in tallies(1).topology.all_topics()
    assert DECIDES.topology.routes in DECIDES.topology.all_topics()


def test_each_worker_answers_by_itself_until_a_version_is_active() -> None:
    assert asked(node(None)) is None
    assert asked(node(routes(), version=2)) is None


def test_the_active_version_answers_and_else_the_one_that_is_named() -> None:
    found = routes(active=Active(version=2), owners={(1, 0): HERE, (2, 0): HERE})
    assert [asked(node(found, own)) for own in (1, 2)] == [2, None]
    assert [asked(node(found, own), "1") for own in (1, 2)] == [None, 1]
    assert asked(node(found), hop=True) is None
    with pytest.raises(RequestValidationError, match="workers of version 1, 2"):
        asked(node(found), "3")
    with pytest.raises(RequestValidationError):
        asked(node(None), "2")


def test_nobody_answers_before_the_routes_were_read() -> None:
    with pytest.raises(NotReady, match="not known yet"):
        asked(node(Routes()))


def test_an_owner_is_who_said_so_last() -> None:
    found = routes(owners={(2, 0): "http://gone", (2, 1): HERE})
    found.apply(owner_key(2, 0), HERE.encode())
    assert found.owners(2) == {0: HERE, 1: HERE}
    found.apply(owner_key(2, 1), None)
    assert owner_in(found, 2, 0) == HERE
    with pytest.raises(NotReady, match="no worker of it has said that it owns partition 1"):
        owner_in(found, 2, 1)


def test_a_record_that_cant_be_read_changes_nothing() -> None:
    found = routes(active=Active(version=2))
    for key, value in ((b"active", b"{"), (b"owner/x/1", b"url"), (b"later", b"1"), (None, None)):
        found.apply(key, value)
    assert found.active == Active(version=2)
    assert found.versions == set()


def test_a_stream_is_told_when_another_version_answers() -> None:
    async def follow() -> None:
        moved = asyncio.ensure_future(found.moved(1))
        for active in (Active(version=1, reason="again"), Active(version=2, former=1)):
            await asyncio.sleep(0)
            assert not moved.done()
            found.apply(*active.record)
        await moved

    found = routes(active=Active(version=1))
    asyncio.run(follow())


def rows(*records: tuple[str, int | None, int], until: int, name: str = "totals") -> RowsAt:
    """Records of a changelog: key, state and offset."""
    found = RowsAt(name, {name: until})
    for key, state, offset in records:
        value = None if state is None else ENCODE(Row(1, {"visits": state}, {}, offset))
        found.add(key.encode(), value)
    return found


def test_rows_are_compared_as_they_were_at_the_fence() -> None:
    found = Compared("totals")
    one = rows(("a", 1, 0), ("b", 1, 1), ("b", None, 2), ("c", 1, 3), ("a", 2, 5), until=5)
    other = rows(("a", 1, 0), ("c", 4, 3), ("d", 1, 4), until=5)
    compare_rows(found, 3, one, other)
    assert (found.equal, found.moved, found.rows) == (1, 0, 3)
    assert [(each.key, dict(each.fields)) for each in found.differ] == [
        (b"c", {"visits": (1, 4)}),
        (b"d", {"visits": (None, 1)}),
    ]
    assert found.by_field == {"visits": 2}


def test_a_row_whose_state_at_the_fence_was_compacted_away_is_not_called_different() -> None:
    found = Compared("totals")
    compare_rows(found, 0, rows(("a", 2, 7), until=5), rows(("a", 1, 3), until=5))
    assert (found.rows, found.moved) == (0, 1)


def test_a_joined_row_counts_while_all_that_it_is_made_of_does() -> None:
    found = RowsAt("both", {"one": 5, "two": 3})
    for key, two in (("a", 2), ("b", 3)):
        found.add(key.encode(), ENCODE(Row(1, {"n": 1}, {}, 4, {"one": [1, 4], "two": [1, two]})))
    assert ({*found.states}, found.later) == ({b"a"}, {b"b"})


def test_what_differs_is_shown_by_row_and_counted_by_field() -> None:
    differ = [Differing(0, f"k{n}".encode(), b'{"a":1,"b":1}', b'{"a":2,"b":1}') for n in range(SHOWN + 1)]
    lines = list(compared(Compared("totals", equal=7, moved=2, differ=differ)))
    assert lines[0] == "table     totals: 7 of 28 rows are equal; 2 more changed meanwhile"
    assert lines[1:3] == ["field     a differs in 21", "row       k0 in partition 0: a 1 → 2"]
    assert lines[-1] == "          and 1 more"
    (_, _, alone) = compared(Compared("totals", differ=[Differing(0, b"k", None, b'{"a":1}')]))
    assert alone == "row       k in partition 0: only the second has it: a null → 1"


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (
            replace(
                DECIDES,
                topology=replace(DECIDES.topology.next_version, tables=(replace(DECIDES.aggregates, ends=True),)),
            ),
            "aggregates' rows end",
        ),
        (Service(Topology("senders", topics=(), version=2)), "no rows to see beforehand"),
    ],
)
def test_what_can_not_be_followed_is_not_deployed(service: Service, why: str) -> None:
    with pytest.raises(VersionsRefused, match=why):
        list(Versions(service, Settings(bootstrap="127.0.0.1:1")).deploy())


@pytest.mark.parametrize(
    ("after", "own", "is_superseded"),
    [
        (None, None, True),  # rebuilt, and neither ever had a turn
        (Role(1, acts=True), Role(1, acts=True), True),  # rebuilt
        (Role(0, acts=False), None, False),  # deployed
        (Role(1, acts=True), Role(1, acts=False), False),  # switched to
        (Role(2, acts=False), Role(2, acts=True), False),  # rolled back
        (Role(3, acts=True), Role(1, acts=True), True),  # rebuilt, and gone on since
    ],
)
def test_a_version_is_superseded_by_one_that_goes_on_from_it_and_not_by_one_beside_it(
    after: Role | None, own: Role | None, is_superseded: bool
) -> None:
    roles = [Role.of(None if role is None else role.committed) for role in (after, own)]
    assert supersedes(*roles) == is_superseded


def test_a_turn_is_of_the_partition_that_it_lies_in() -> None:
    found = routes(active=Active(version=2, former=1), owners={(1, 0): HERE, (1, 1): HERE, (2, 0): HERE})
    found.apply(TURN, Turn(number=1, version=2, giver=1).model_dump_json().encode(), 0)
    found.apply(TURN, Turn(number=0, version=1, giver=1).model_dump_json().encode(), 1)
    request = Request({"type": "http", "headers": []})
    asked_in = [[other_version(request, cast(Node, node(found, own)), n) for n in (0, 1)] for own in (1, 2)]
    assert asked_in == [[2, None], [None, 1]]
    assert [acting_elsewhere(cast(Node, node(found, 1)), n) for n in (0, 1, 2)] == [2, None, None]


class Kafka:
    """What brokers tell of versions of tills. positions: of their groups. parked: in their changelogs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, acts: dict[int, Role], *, running: tuple[int, ...]) -> None:
        self.topologies = {version: tills(version, "tills").topology for version in (1, 2, 3)}
        self._acts = {self.topologies[version].group: role for version, role in acts.items()}
        self._running = {self.topologies[version].group for version in running}
        self.records: dict[str, list[tuple[int, bytes, bytes | None]]] = {}
        monkeypatch.setattr("shared.operations.versions.Brokers", lambda _: self)
        monkeypatch.setattr("shared.operations.versions.read_all", lambda _, topic: self.records.get(topic, []))

    def routes(self, active: Active, turn: Turn) -> None:
        every, topology = range(PARTITIONS), self.topologies[1]
        owners = [(0, owner_key(version, number), HERE.encode()) for number in every for version in self.topologies]
        turns = [(number, TURN, turn.model_dump_json().encode()) for number in every]
        self.records[topology.routes.name] = [(0, *active.record), *turns, *owners]

    def park(self, version: int, processor: str) -> None:
        parked = Parked(
            processor=processor, topic="t", partition=0, offset=7, code="message.unknown", reason="new", attempts=1
        )
        topology = self.topologies[version]
        changelog = topology.changelog(topology.parked).name
        self.records[changelog] = [(0, b"an id", PARKED_CODEC.encode(Row(1, parked, {}, 0)))]

    def has(self, _: str) -> bool:
        return True

    def members(self, group: str) -> list[str]:
        return [f"1 of {group}"] * (group in self._running)

    def positions(self, group: str) -> dict[str, dict[int, int]]:
        role = self._acts.get(group)
        return {self.topologies[1].routes.name: dict.fromkeys(range(PARTITIONS), role.committed)} if role else {}

    def settled_ends(self, _: str) -> dict[int, int]:
        return dict.fromkeys(range(PARTITIONS), 0)

    starts = settled_ends


def plan(steps: Any) -> list[str]:
    return [each.says for each in steps]


def versions_of(version: int) -> Versions:
    return Versions(tills(version, "tills"), Settings(bootstrap="127.0.0.1:1"))


def test_a_version_that_was_rebuilt_has_the_turns_that_nobody_can_give(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = Role(1, acts=True)
    kafka = Kafka(monkeypatch, {2: acts, 3: acts}, running=(3,))
    kafka.routes(Active(version=2), Turn(number=1, version=2, giver=1))
    answers, has_turns = plan(versions_of(3).switch("me", ""))
    assert answers.startswith("version 3 answers all requests")
    assert has_turns.startswith(f"version 3 has the turn in {PARTITIONS} partitions, as it goes on")


@pytest.mark.parametrize(("running", "lacks"), [((1,), "tills-v2"), ((2,), "tills")])
def test_a_turn_is_given_and_taken_by_workers(
    running: tuple[int, ...], lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = Kafka(monkeypatch, {1: Role(1, acts=False), 2: Role(1, acts=True)}, running=running)
    kafka.routes(Active(version=2, former=1), Turn(number=1, version=2, giver=1))
    with pytest.raises(VersionsRefused, match=f"{lacks} has no workers"):
        plan(versions_of(2).rollback("me", ""))


def test_a_rollback_says_before_it_begins_what_the_former_version_could_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(monkeypatch, {1: Role(1, acts=False), 2: Role(1, acts=True)}, running=(1, 2))
    kafka.routes(Active(version=2, former=1), Turn(number=1, version=2, giver=1))
    kafka.park(1, "rings")
    lacks, answers, takes = plan(versions_of(2).rollback("me", ""))
    assert lacks.endswith("until it is retried: t/0 at 7 in rings (message.unknown: new)")
    assert answers.startswith("version 1 answers all requests")
    assert takes.startswith(f"version 1 takes its turn in {PARTITIONS} partitions")
    kafka.park(1, "follow.tills.events.v1")
    with pytest.raises(VersionsRefused, match="version 1 could not handle t/0 at 7 in follow"):
        plan(versions_of(2).rollback("me", ""))


def test_what_a_version_has_decided_it_does_not_have_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch, {1: Role(), 2: Role(0, acts=False)}, running=(1, 2))
    kafka.routes(Active(version=1), Turn(number=0, version=1, giver=1))
    monkeypatch.setattr(kafka, "settled_ends", lambda _: dict.fromkeys(range(PARTITIONS), 2_000))
    service = tills(2, "tills")
    without_views = replace(service.topology, tables=service.topology.tables[:1])
    versions = Versions(replace(service, topology=without_views, projections=()), Settings(bootstrap="127.0.0.1:1"))
    assert [each.lag for each in versions.standing()] == [0, PARTITIONS * 2_000]


def turns_of(version: int, role: Role, turn: Turn) -> tuple[Turns, Batch]:
    """Of a worker that owns partition 1."""
    topology, batch = tills(version, "tills").topology, Batch("dead")
    found = routes(active=Active(version=2))
    found.apply(TURN, turn.model_dump_json().encode(), 1)
    holdings = Holdings(topology, [], {})
    holdings.roles = {1: role}
    holdings.sources = {Place("tills.commands.v1", 1): Source(Place("tills.commands.v1", 1), [], 0, 0)}
    filling = SimpleNamespace(batch=batch, parking=lambda _: SimpleNamespace(ids=()))
    return Turns(holdings, cast(Any, filling), found, cast(Any, None), cast(Any, None)), batch


@pytest.mark.parametrize(
    ("version", "turn", "gives"),
    [
        (1, Turn(number=0, version=1, giver=1), [1]),
        (2, Turn(number=1, version=2, giver=1), []),
        (3, Turn(number=1, version=2, giver=1), []),  # rebuilt, and not switched to yet
    ],
)
def test_only_the_version_that_has_the_turn_gives_it(version: int, turn: Turn, gives: list[int]) -> None:
    turns, _ = turns_of(version, Role(turn.number, acts=True), turn)
    assert turns.to_give() == gives


def test_a_group_says_again_that_another_version_acts_before_brokers_forget() -> None:
    role = Role(1, acts=False)
    turns, batch = turns_of(1, role, Turn(number=1, version=2, giver=1))
    turns.renew()
    assert batch.offsets == {Place("tills.routes.v1", 1): role.committed}
    batch.offsets.clear()
    turns.renew()
    assert not batch


def test_turns_that_are_ready_wait_a_moment_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr("shared.engine.turns.elapsed_s", lambda: now[0])
    turn, events = Turn(number=1, version=2, giver=1), [Place("tills.events.v1", number) for number in (0, 1)]
    found = routes(active=Active(version=2))
    for number in (0, 1):
        found.apply(TURN, turn.model_dump_json().encode(), number)
    holdings = Holdings(tills(2, "tills").topology, [], {})
    holdings.roles = dict.fromkeys((0, 1), Role(0, acts=False))
    holdings.sources = {place: Source(place, [], 5 * place.number, 5, followed=True) for place in events}
    filling = SimpleNamespace(parking=lambda _: SimpleNamespace(ids=()))

    async def ask(_: object, places: list[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 5)

    turns = Turns(holdings, cast(Any, filling), found, cast(Any, SimpleNamespace(ends=None)), cast(Any, ask))
    assert asyncio.run(turns.to_take()) == []
    now[0] += TOGETHER_S
    assert asyncio.run(turns.to_take()) == [(1, turn)]
    holdings.sources[events[0]].position = 5
    assert asyncio.run(turns.to_take()) == [(0, turn), (1, turn)]
