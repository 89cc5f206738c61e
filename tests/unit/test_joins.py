"""Rows that are joined of two views: the same whichever topic is ahead, and nothing but what both views say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shared.domain import Row
from shared.engine.processors import ProjectionProcessor
from shared.engine.wiring import processors_of, wired
from shared.http.api import create_api
from shared.http.resource import Resource
from shared.testing.conversation import Conversation, MemoryRecord, Turn, replayed
from shared.testing.node import MemoryNode
from shared.topology import Join, Projection, Service, Table, Topic
from shared.topology.replay import replay_of
from tests.pipelines.larder.service import (
    COOKED,
    EATEN,
    HARVESTED,
    HEAPED,
    HEAPS,
    JOIN,
    LEFT,
    MEALS,
    SERVICE,
    TOPOLOGY,
    Harvested,
    Left,
    Sum,
    added,
    left,
    written,
)
from tests.unit.http.services import client_of

said = st.lists(
    st.tuples(st.sampled_from([HARVESTED, EATEN]), st.sampled_from(["oats", "rye"]), st.integers(0, 9)), max_size=12
)  # 0 ends the row of its view
Said = Sequence[tuple[Topic, str, int]]


def told(history: Said, choose: Callable[[Sequence[Turn]], Turn], each: Callable[[Conversation], None]) -> Conversation:
    """Every record is handled when `choose` says, in the order of its topic and key; `each` looks after it."""
    talk = Conversation(processors_of(SERVICE))
    for number, (topic, crop, kilos) in enumerate(history):
        talk.say(topic, crop, written(topic, crop, number, kilos))
    while turns := talk.turns():
        talk.hear(choose(turns))
        each(talk)
    return talk


def folded(log: Sequence[MemoryRecord], projection: Projection[Any, Any]) -> Mapping[str, Any]:
    """The rows that the projection makes of its own topic, without the other."""
    rows, _ = replayed(ProjectionProcessor(projection), log)
    return {key.decode(): projection.row_codec.decode(row) for key, row in rows.items()}


@given(said, st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_whichever_topic_is_ahead_the_joined_rows_are_the_same_byte_by_byte(
    history: Said, one: Any, other: Any
) -> None:
    first, second = (told(history, random.choice, lambda _: None) for random in (one, other))
    assert first.rows(LEFT) == second.rows(LEFT)


@given(said, st.randoms(use_true_random=False))
def test_a_joined_row_is_the_join_of_what_each_topic_gives_by_itself(history: Said, random: Any) -> None:
    """So Spark folds each topic alone, and joins the results."""
    talk = told(history, random.choice, lambda _: None)
    heaps, meals = folded(talk.log[HARVESTED.name], HEAPED), folded(talk.log[EATEN.name], COOKED)
    expected = {
        crop: JOIN.row([heaps.get(crop, HEAPED.initial_row), meals.get(crop, COOKED.initial_row)], crop)
        for crop in sorted({*heaps, *meals})
    }
    assert talk.rows(LEFT) == {crop: JOIN.row_codec.encode(row) for crop, row in expected.items() if row}
    assert talk.rows(LEFT).keys() == expected.keys()


@given(said, st.randoms(use_true_random=False))
def test_at_every_moment_a_joined_row_says_which_rows_it_was_made_of(history: Said, random: Any) -> None:
    def check(talk: Conversation) -> None:
        parts = [(each, talk.rows(each.table)) for each in (HEAPED, COOKED)]
        joined = {crop: JOIN.row_codec.decode_whole(row) for crop, row in talk.rows(LEFT).items()}
        for crop in ("oats", "rye"):
            rows = [each.row_codec.decode(kept[crop]) if crop in kept else each.initial_row for each, kept in parts]
            assert joined.get(crop) == JOIN.row(rows, crop)

    told(history, random.choice, check)


def test_a_joined_row_is_made_of_what_is_left_when_a_views_row_ends_and_ends_with_the_last() -> None:
    """In the transaction of the event that ends it; what begins again counts from 1."""
    node = node_of(SERVICE)
    shown = []
    for number, (topic, kilos) in enumerate([(HARVESTED, 9), (EATEN, 4), (HARVESTED, 0), (EATEN, 0), (EATEN, 3)]):
        append(node, topic, "rye", number, kilos)
        shown.append(node.read(LEFT, node.partition(b"rye"), b"rye"))
    assert [row and (row.sequence, row.state.kilos, row.made_of) for row in shown] == [
        (1, 9, {"heaps": [1, 0]}),
        (2, 5, {"heaps": [1, 0], "meals": [1, 0]}),
        (1, -4, {"meals": [1, 0]}),
        None,
        (1, -3, {"meals": [1, 2]}),
    ]


def test_a_join_that_fails_ends_no_row() -> None:
    """The record of the end is parked as its view's, with nothing changed."""

    def fails(heap: Sum, meal: Sum, crop: str) -> Left:
        if not heap.last:
            raise ZeroDivisionError
        return left(heap, meal, crop)

    node = node_of(replace(SERVICE, joins=[Join(LEFT, fails, state=Left)]))
    for number, (topic, kilos) in enumerate([(HARVESTED, 9), (EATEN, 4), (HARVESTED, 0)]):
        append(node, topic, "rye", number, kilos)
    assert {table.name: row_of(node, table)["kilos"] for table in (HEAPS, LEFT)} == {"heaps": 9, "left": 5}


def test_a_table_ends_if_one_that_it_joins_does() -> None:
    """So brokers and stores know that its rows go."""
    stays = replace(MEALS, ends=False)
    assert LEFT.ends
    assert Table.joined("left", HEAPS, stays).ends
    assert not Table.joined("left", replace(HEAPS, ends=False), stays).ends


@pytest.mark.parametrize("name", ["heaps", "left", "meals"])
def test_what_is_joined_is_only_computed_again_together(name: str) -> None:
    """A joined row of a key that the other view alone has would be gone, or stay as it was."""
    replay = replay_of(TOPOLOGY, processors_of(SERVICE), name)
    assert (replay.tables, replay.sources, replay.again) == (TOPOLOGY.tables, (HARVESTED, EATEN), (HARVESTED, EATEN))


def test_a_join_that_fails_leaves_both_tables_as_they_were() -> None:
    def fails(heap: Sum, meal: Sum, crop: str) -> Left:
        if heap.last == 5:
            raise ZeroDivisionError
        kilos: Any = heap.kilos if heap.last == 2 else "many, which can't be read again"
        return left(heap, meal, crop).model_copy(update={"kilos": kilos})

    node = node_of(replace(SERVICE, joins=[Join(LEFT, fails, state=Left)]))
    for number, kilos in enumerate((2, 5, 7)):
        append(node, HARVESTED, "rye", number, kilos)
    assert {table.name: row_of(node, table)["kilos"] for table in (HEAPS, LEFT)} == {"heaps": 2, "left": 2}


@pytest.mark.parametrize(
    ("joins", "reason"),
    [
        ([HEAPS], r"pile joins heaps; fix: name two views or more, each once"),
        ([HEAPS, HEAPS], r"pile joins heaps, heaps; fix: name two views or more, each once"),
        ([HEAPS, LEFT], r"pile joins left, which is joined itself; fix: join heaps, meals instead"),
        ([HEAPS, Table("sacks", source=Topic("sacks.commands.v1"))], r"sacks, which is an aggregate's .*; fix: join a"),
        ([HEAPS, replace(MEALS, keyed_by_id=False)], r"whose keys are not spread alike; fix: give them the same"),
    ],
)
def test_tables_that_can_not_be_joined_are_refused(joins: Sequence[Table], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Table.joined("pile", *joins)


def test_what_a_join_lacks_is_named_at_start_up() -> None:
    with pytest.raises(ValueError, match=r"larder: left joins meals; fix: add it to `tables` in topology\.py, too"):
        replace(TOPOLOGY, tables=(HEAPS, LEFT))
    with pytest.raises(ValueError, match=r"larder: left joins meals, which no projection fills; fix: give its Service"):
        replace(SERVICE, projections=[HEAPED])
    with pytest.raises(ValueError, match=r"larder: two joins fill left; fix: keep one"):
        replace(SERVICE, joins=[JOIN, Join(LEFT, left, state=Left)])
    with pytest.raises(ValueError, match=r"nothing fills the table left; fix: give its Service the join that does"):
        wired(TOPOLOGY, processors_of(replace(SERVICE, joins=[])))
    with pytest.raises(
        ValueError, match=r"heaps joins no tables; fix: declare it with Table\.joined, or use Projection"
    ):
        Join(HEAPS, left, state=Left)
    with pytest.raises(ValueError, match=r"left is joined of other tables; fix: fill it with a Join"):
        Projection(LEFT, added, initial=Sum(), events=(Harvested,), state=Sum)
    pounds = Table.joined("left", HEAPS, MEALS, indexes=("pounds",))
    with pytest.raises(ValueError, match=r"the state in the table left has no field 'pounds'"):
        wired(
            replace(TOPOLOGY, tables=(HEAPS, MEALS, pounds)),
            processors_of(
                replace(
                    SERVICE,
                    topology=replace(TOPOLOGY, tables=(HEAPS, MEALS, pounds)),
                    joins=[Join(pounds, left, state=Left)],
                )
            ),
        )


class LeftView(BaseModel):
    crop: str
    kilos: int


def left_view(crop: str, row: Row[Left]) -> LeftView:
    return LeftView(crop=crop, kilos=row.state.kilos)


ROUTES = Resource("/larder/left/{crop}", LEFT, left_view, filters=("kilos",))


def node_of(service: Service) -> MemoryNode:
    return MemoryNode(service.topology, processors_of(service))


def append(node: MemoryNode, topic: Topic, crop: str, number: int, kilos: int) -> int:
    _, offset = asyncio.run(node.append(topic, crop.encode(), written(topic, crop, number, kilos)))
    return offset


def row_of(node: MemoryNode, table: Table, crop: str = "rye") -> dict[str, Any]:
    row = node.read(table, node.partition(crop.encode()), crop.encode())
    assert row is not None
    shown: dict[str, Any] = row.state.model_dump()
    return shown


@pytest.mark.anyio
async def test_a_list_is_filtered_and_ordered_by_what_either_topic_changes() -> None:
    node = node_of(SERVICE)
    for number, (topic, crop, kilos) in enumerate([(HARVESTED, "rye", 9), (HARVESTED, "oats", 5), (EATEN, "rye", 8)]):
        await node.append(topic, crop.encode(), written(topic, crop, number, kilos))
    async with client_of(create_api(node, ROUTES)) as http:
        page = (await http.get("/larder/left", params={"order": "-kilos", "kilos_min": 0})).json()
        few = (await http.get("/larder/left", params={"kilos_max": 1})).json()
    assert [(each["crop"], each["kilos"]) for each in page["items"]] == [("oats", 5), ("rye", 1)]
    assert [each["crop"] for each in few["items"]] == ["rye"]


@pytest.mark.anyio
async def test_a_read_waits_for_the_topic_that_its_position_names() -> None:
    """Each of the two is its own: a joined row is as old as the older of them."""
    node = node_of(SERVICE)
    await node.append(HARVESTED, b"rye", written(HARVESTED, "rye", 0, 9))
    partition = node.partition(b"rye")
    async with client_of(create_api(node, ROUTES)) as http:
        answer = await http.get("/larder/left/rye")
        assert answer.headers["Onefold-Position"] == f"fields.events.v1/{partition}@0,kitchens.events.v1/{partition}@-1"
        eaten = {"min_position": f"kitchens.events.v1/{partition}@0"}
        too_early = await http.get("/larder/left/rye", params=eaten)
        await node.append(EATEN, b"rye", written(EATEN, "rye", 0, 4))
        now = await http.get("/larder/left/rye", params=eaten)
    assert (too_early.status_code, now.status_code, now.json()["kilos"]) == (503, 200, 5)
    assert f"at offset -1 of kitchens.events.v1/{partition}, not yet at 0" in too_early.text


@pytest.mark.anyio
async def test_each_change_of_either_view_is_a_change_of_the_joined_row() -> None:
    node = node_of(SERVICE)
    partition = node.partition(b"rye")
    async with node.changes(LEFT, {partition: None}) as feed:
        await node.append(HARVESTED, b"rye", written(HARVESTED, "rye", 0, 9))
        await node.append(EATEN, b"rye", written(EATEN, "rye", 0, 4))
        changes = await anext(feed.changes)
    assert [(each.row.sequence, each.row.state.kilos) for each in changes if each.row] == [(1, 9), (2, 5)]
