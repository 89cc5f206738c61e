"""Rows that show those of a reference table: the same whichever topic is ahead, and each change of either is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shared.domain import Row
from shared.engine import references
from shared.engine.wiring import processors_of, wired
from shared.http.api import create_api
from shared.http.resource import Resource
from shared.testing.conversation import Conversation, Turn
from shared.testing.node import MemoryNode
from shared.topology import Rekey, Service, Table, Topic
from shared.topology.replay import replay_of
from tests.pipelines.boards.service import (
    AIRPORTS,
    BOARD,
    COPIES,
    FLOWN,
    JOIN,
    MAPPED,
    PLANNED,
    REKEY,
    ROUTES,
    SERVICE,
    TOPOLOGY,
    Airport,
    Named,
    Route,
    Shown,
    name,
    plan,
)
from tests.unit.http.services import client_of

CODES = ("ams", "ber", "cph")
planned = st.builds(plan, st.sampled_from("pqrs"), st.sampled_from([*CODES, ""]), st.sampled_from([*CODES, None]))
named = st.builds(name, st.sampled_from(CODES), st.sampled_from(["", "North", "South"]))
said = st.lists(st.one_of(planned, named), max_size=14)
Said = Sequence[tuple[Topic, str, bytes]]


def told(history: Said, choose: Callable[[Sequence[Turn]], Turn]) -> Conversation:
    talk = Conversation(processors_of(SERVICE))
    for topic, key, value in history:
        talk.say(topic, key, value)
    talk.run(choose)
    return talk


@given(said, st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_whichever_topic_is_ahead_the_rows_are_the_same_but_for_offsets(history: Said, one: Any, other: Any) -> None:
    """The copies of several airports may come in another order."""
    first, second = (told(history, random.choice) for random in (one, other))
    assert shown(first) == shown(second)


def shown(talk: Conversation) -> dict[str, tuple[int, Any]]:
    rows = {key: JOIN.row_codec.decode_whole(row) for key, row in talk.rows(BOARD).items()}
    return {key: (row.sequence, row.state) for key, row in rows.items()}


@given(said, st.randoms(use_true_random=False), st.integers(1, 4))
def test_each_row_is_the_join_of_the_rows_that_it_says(history: Said, random: Any, at_once: int) -> None:
    """However few are made again at a time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(references, "AT_ONCE", at_once)
        talk = told(history, random.choice)
    routes = {key: FLOWN.row_codec.decode(row) for key, row in talk.rows(ROUTES).items()}
    airports = {key: MAPPED.row_codec.decode(row) for key, row in talk.rows(AIRPORTS).items()}
    rows = {key: JOIN.row_codec.decode_whole(row) for key, row in talk.rows(BOARD).items()}
    assert rows == {
        key: JOIN.row(
            [
                route,
                *(airports.get(code or "", MAPPED.initial_row) for code in (route.state.origin, route.state.target)),
            ],
            key,
        )
        for key, route in routes.items()
    }


class BoardView(BaseModel):
    flight: str
    going_to: str


def board_view(flight: str, row: Row[Shown]) -> BoardView:
    return BoardView(flight=flight, going_to=row.state.going_to)


RESOURCE = Resource("/board/{flight}", BOARD, board_view, filters=("going_to",), sorts=("going_to",))


def node_of(*history: tuple[Topic, str, bytes]) -> MemoryNode:
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE))
    append(node, *history)
    return node


def append(node: MemoryNode, *history: tuple[Topic, str, bytes]) -> None:
    for topic, key, value in history:
        asyncio.run(node.append(topic, key.encode(), value))


@pytest.mark.anyio
async def test_a_list_is_filtered_and_ordered_by_the_name_that_a_reference_has_now() -> None:
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE))
    for topic, key, value in [
        *(plan(f"f-{number}", "ams", CODES[number % 3]) for number in range(6)),
        *(name(code, name_) for code, name_ in zip(CODES, ["Polder", "Spree", "Sound"], strict=True)),
        name("ams", "Canal"),
    ]:
        await node.append(topic, key.encode(), value)
    async with client_of(create_api(node, RESOURCE)) as http:
        page = (await http.get("/board", params={"order": "going_to"})).json()["items"]
        few = (await http.get("/board", params={"going_to": "Canal 2"})).json()["items"]
    assert [each["going_to"] for each in page] == ["Canal 2"] * 2 + ["Sound 1"] * 2 + ["Spree 1"] * 2
    assert {each["flight"] for each in few} == {"f-0", "f-3"}


class AirportView(BaseModel):
    code: str
    name: str


def airport_view(code: str, row: Row[Airport]) -> AirportView:
    return AirportView(code=code, name=row.state.name)


@pytest.mark.anyio
async def test_a_reference_table_is_listed_once_though_each_partition_has_it() -> None:
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE))
    resource = Resource("/airports/{code}", AIRPORTS, airport_view, filters=("name",), sorts=("name",))
    api = create_api(node, resource)
    for topic, key, value in (name(code, name_) for code, name_ in zip(CODES, ["P", "S", "P"], strict=True)):
        await node.append(topic, key.encode(), value)
    async with client_of(api) as http:
        whole = (await http.get("/airports", params={"order": "name"})).json()
        few = (await http.get("/airports", params={"name": "P"})).json()["items"]
        third = (await http.get("/airports", params={"partitions": "2"})).json()
        rows = [(await http.get(f"/airports/{code}")).json() for code in CODES]
    assert [each["code"] for each in whole["items"]] == ["ams", "cph", "ber"]
    assert [each["partition"] for each in whole["partitions"]] == [0]
    assert [each["code"] for each in few] == ["ams", "cph"]
    assert third["items"] == rows
    assert [each["partition"] for each in third["partitions"]] == [2]


@pytest.mark.anyio
async def test_a_change_of_what_a_row_refers_to_is_a_change_of_the_row_and_of_no_other() -> None:
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE))
    partition = node.partition(b"f-1")
    async with node.changes(BOARD, {partition: None}, b"f-1") as feed:
        for topic, key, value in [
            plan("f-1", "ams", "ber"),
            name("ber", "Spree"),
            name("cph", "Sound"),
            name("ber", ""),
        ]:
            await node.append(topic, key.encode(), value)
        changes = await anext(feed.changes)
    assert [(each.row.sequence, each.row.state.going_to) for each in changes if each.row] == [
        (1, "ber"),
        (1, "Spree 1"),
        (1, "ber"),
    ]


@pytest.mark.anyio
async def test_a_position_says_which_references_a_row_shows() -> None:
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE))
    for topic, key, value in [name("ber", "Spree"), plan("f-1", "ams", "ber")]:
        await node.append(topic, key.encode(), value)
    partition = node.partition(b"f-1")
    async with client_of(create_api(node, RESOURCE)) as http:
        answer = await http.get("/board/f-1")
    assert answer.headers["Onefold-Position"] == f"{COPIES.name}/{partition}@0,planes.events.v1/{partition}@0"


def test_a_row_ends_with_its_view_and_not_with_what_it_refers_to() -> None:
    node = node_of(plan("f-1", "ams", "ber"), name("ber", "Spree"), plan("f-1", ""))
    assert node.read(BOARD, node.partition(b"f-1"), b"f-1") is None
    append(node, name("ber", "Havel"), plan("f-1", "ams", "ber"))
    row = node.read(BOARD, node.partition(b"f-1"), b"f-1")
    assert row is not None
    assert (row.sequence, row.state.going_to) == (1, "Havel 2")


def test_a_join_that_fails_leaves_a_row_as_it_was_and_holds_nothing_up() -> None:
    def fails(route: Route, origin: Any, target: Any, flight: str) -> Shown:
        if flight == "f-1" and target:
            raise ZeroDivisionError
        return JOIN.join(route, origin, target, flight)

    node = MemoryNode(TOPOLOGY, processors_of(replace(SERVICE, joins=[replace(JOIN, join=fails)])))
    append(node, plan("f-1", "ams", "ber"), plan("f-2", "ams", "ber"), name("ber", "Spree"), name("ams", "Polder"))
    rows = [node.read(BOARD, node.partition(key), key) for key in (b"f-1", b"f-2")]
    assert [row and (row.state.coming_from, row.state.going_to) for row in rows] == [
        ("ams", "ber"),
        ("Polder 1", "Spree 1"),
    ]


@pytest.mark.parametrize("table", [ROUTES.name, AIRPORTS.name, BOARD.name])
def test_what_shows_a_reference_is_computed_again_with_it(table: str) -> None:
    replay = replay_of(TOPOLOGY, processors_of(SERVICE), table)
    assert (replay.tables, replay.again) == (TOPOLOGY.tables, (PLANNED, COPIES))


def test_what_a_reference_table_lacks_is_named_with_the_cure() -> None:
    with pytest.raises(ValueError, match=r"refers to routes, of which no .*; fix: declare it with Table\.reference"):
        Table.joined("board", ROUTES, refers={"origin": ROUTES})
    with pytest.raises(ValueError, match=r"by 'via', and nothing finds .*; fix: name 'via' in the indexes of routes"):
        Table.joined("board", ROUTES, refers={"via": AIRPORTS})
    with pytest.raises(ValueError, match=r"joins airports, a reference table; fix: name it in `refers`"):
        Table.joined("board", ROUTES, AIRPORTS)
    with pytest.raises(ValueError, match=r"airports is a reference table, .*; fix: name its source in `everywhere`"):
        replace(SERVICE, rekeys=[])
    plain = replace(AIRPORTS, everywhere=False)
    with pytest.raises(ValueError, match=r"airports is no reference table, .*; fix: declare it with Table\.reference"):
        replace(SERVICE, topology=replace(TOPOLOGY, tables=(plain,)), joins=[], projections=[])
    with pytest.raises(ValueError, match=r"has each event once for each partition, .*; fix: read what it is copied"):
        replace(SERVICE, rekeys=[REKEY, Rekey(source=COPIES, events=(Named,), name="again")])


def test_a_row_is_referred_to_by_a_text() -> None:
    class Numbered(Route):
        origin: int  # type: ignore[assignment]

    projections = [replace(FLOWN, state=Numbered), MAPPED]
    with pytest.raises(ValueError, match=r"'origin' in the table routes names a row .*, and keys are text; fix: "):
        wired(TOPOLOGY, processors_of(Service(TOPOLOGY, rekeys=[REKEY], projections=projections, joins=[JOIN])))
