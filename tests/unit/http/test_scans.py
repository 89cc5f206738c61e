"""A list reads little more than it shows, whatever it is filtered by, and has all that matches, in its order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as some
from pydantic import BaseModel

from shared.domain.errors import NotReady
from shared.domain.message import Event
from shared.domain.row import Row
from shared.domain.state import State
from shared.engine.processors import ProjectionProcessor
from shared.http import lists, scans
from shared.http.api import create_api
from shared.http.resource import Resource
from shared.http.scans import Bounds, Scan, SortKey, Wanted
from shared.tables import store as store_module
from shared.tables.indexing import sortable
from shared.testing.node import StoredNode
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic, Topology
from tests.unit.http.services import client_of

pytestmark = pytest.mark.anyio

SEVERAL = (("carrier", "phase"), ("phase", "delay"), ("phase", "carrier", "gate"))


class Flown(Event):
    TYPE = "flight.flown"


class Flight(State):
    carrier: str
    phase: str
    delay: int | None
    gate: str


class FlightView(BaseModel):
    flight: str
    carrier: str
    phase: str
    delay: int | None
    gate: str


def flight_view(flight: str, row: Row[Flight]) -> FlightView:
    return FlightView(flight=flight, **row.state.model_dump())


FLIGHTS = [
    (f"f-{number:04}", Flight(carrier=carrier, phase=phase, delay=delay, gate=gate))
    for chance in [random.Random(7)]
    for number in range(1_000)
    for carrier in [chance.choice("uuuuuuudddda")]
    for phase in ["landed" if carrier == "d" or chance.random() < 0.8 else "cancelled"]
    for delay in [None if phase == "cancelled" and chance.random() < 0.5 else chance.randrange(-20, 100)]
    for gate in [chance.choice("xy")]
]


class Airport:
    """Its flights over HTTP, from a store with these indexes, too. reads: of rows, for the last answer."""

    def __init__(self, folder: Path, *several: tuple[str, ...]) -> None:
        topic = Topic("flights.events.v1")
        self.table = table = Table("flights", source=topic, indexes=("carrier", "phase", "delay", "gate", *several))
        projection = Projection(
            table, lambda view, _event, _key: view, initial=None, events=(Flown,), state=Flight | None
        )
        topology = Topology("flights", topics=(topic,), tables=(table,))
        self.node = StoredNode(topology, [ProjectionProcessor(projection)], table, folder)
        self.node.put({flight: Row(1, state, {}, number) for number, (flight, state) in enumerate(FLIGHTS)})
        filters = ("carrier", "phase", "delay", "gate")
        self.api: FastAPI = create_api(
            self.node, Resource("/flights/{flight}", table, flight_view, filters=filters, sorts=("carrier", "-carrier"))
        )
        self.reads = 0
        read = self.node.read

        def counted(table: Table, partition: int, key: bytes) -> Row[Any] | None:
            self.reads += 1
            return read(table, partition, key)

        self.node.read = counted  # type: ignore[method-assign]

    async def page(self, **query: Any) -> dict[str, Any]:
        self.reads = 0
        async with client_of(self.api) as http:
            answer = await http.get("/flights", params=query)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airport]:
    """Each field has an index of its own, and nothing more."""
    airport = Airport(tmp_path_factory.mktemp("alone"))
    yield airport
    airport.node.close()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airport]:
    airport = Airport(tmp_path_factory.mktemp("several"), *SEVERAL)
    yield airport
    airport.node.close()


@pytest.fixture(params=["alone", "several"])
def airport(request: pytest.FixtureRequest) -> Airport:
    found: Airport = request.getfixturevalue(request.param)
    return found


def of(phase: str) -> int:
    return sum(state.phase == phase for _, state in FLIGHTS)


VALUES: dict[str, some.SearchStrategy[str] | some.SearchStrategy[int]] = {
    "carrier": some.sampled_from(["u", "d", "a", "nobody"]),
    "phase": some.sampled_from(["landed", "cancelled"]),
    "gate": some.sampled_from(["x", "y"]),
    "delay": some.integers(-30, 110),
}
BOUNDS = some.fixed_dictionaries(
    {},
    optional={
        field: some.lists(each.map(sortable), min_size=1, max_size=2).map(lambda ends: (min(ends), max(ends)))
        for field, each in VALUES.items()
    },
)
ORDERS = some.sampled_from([(None, False), *((field, down) for field in VALUES for down in (False, True))])


def pages(airport: Airport, wanted: Wanted, limit: int) -> Iterator[list[str]]:
    """The flights of one page after the other."""
    held = set(range(airport.node.topology.partitions))

    def shown(partition: int, key: bytes) -> BaseModel | None:
        row = airport.node.read(airport.table, partition, key)
        return flight_view(key.decode(), row) if row is not None and meets(row.state, wanted) else None

    after: SortKey | None = None
    while True:
        hits, after = Scan(airport.node, airport.table, held, replace(wanted, after=after)).run(limit, shown)
        yield [hit.place[1].decode() for hit in hits]
        if after is None:
            return


def meets(state: Flight, wanted: Wanted) -> bool:
    values = {field: sortable(getattr(state, field)) for field in wanted.bounds}
    return all((low or b"") <= values[field] <= (high or b"\xff") for field, (low, high) in wanted.bounds.items())


def in_order(wanted: Wanted) -> list[str]:
    """All that match, found without any index."""
    places = [
        (sortable(getattr(state, wanted.order)) if wanted.order else b"", flight)
        for flight, state in FLIGHTS
        if meets(state, wanted)
    ]
    return [flight for _, flight in sorted(places, reverse=wanted.descending)]


@pytest.mark.parametrize("kept", ["alone", "several"])
@pytest.mark.parametrize(("sample", "first_look", "most"), [(2, 1, 3), (3, 40, 200), (64, 500, 100_000)])
def test_the_pages_of_a_list_have_every_row_that_matches_once_and_in_order(
    kept: str, sample: int, first_look: int, most: int, request: pytest.FixtureRequest
) -> None:
    airport: Airport = request.getfixturevalue(kept)

    @settings(max_examples=30, deadline=None)
    @given(ORDERS, BOUNDS, some.sampled_from([1, 7, 60]))
    def listed(order: tuple[str | None, bool], bounds: Bounds, limit: int) -> None:
        wanted = Wanted(*order, None, bounds)
        with patch.multiple(scans, SAMPLE=sample, FIRST_LOOK=first_look, MOST=most):
            found = [flight for page in pages(airport, wanted, limit) for flight in page]
        assert found == in_order(wanted)

    listed()


@pytest.mark.parametrize("order", [None, "delay"])
def test_a_page_costs_no_more_than_it_may_however_many_indexes_could_be_read(
    airport: Airport, order: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has nearly all rows within its bounds, and none matches."""
    monkeypatch.setattr(scans, "MOST", 2_000)
    bounds = {"carrier": (sortable("a"), None), "gate": (sortable("x"), None), "phase": (sortable("c"), None)}
    scan = Scan(airport.node, airport.table, range(8), Wanted(order, False, None, bounds))
    hits, after = scan.run(50, lambda *_: None)
    read = [scan.read_of(partition) for partition in range(8)]
    assert (hits, after is None) == ([], False)
    assert 1_900 < sum(each.entries + scans.ROW * each.rows for each in read) < 2_000 + 2 * scans.ROW


def test_what_another_index_has_found_late_is_in_the_page(alone: Airport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "FIRST_LOOK", 200)
    monkeypatch.setattr(scans, "MOST", 800)
    bounds: Bounds = {"carrier": (sortable("a"),) * 2, "phase": (sortable("cancelled"),) * 2}
    wanted = Wanted("delay", False, None, bounds)
    found = [*pages(alone, wanted, 500)]
    assert [flight for page in found for flight in page] == in_order(wanted)
    assert len(found) == 1


def test_a_row_that_changes_while_a_page_is_read_is_not_in_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is found again behind, by another index."""
    monkeypatch.setattr(scans, "FIRST_LOOK", 200)
    airport, shown = Airport(tmp_path), list[str]()

    def view(partition: int, key: bytes) -> BaseModel | None:
        row = airport.node.read(airport.table, partition, key)
        assert row is not None
        shown.append(key.decode())
        if len(shown) == 2:
            late = row.state.model_copy(update={"delay": 1_000})
            airport.node.put({shown[0]: Row(2, late, {}, 1_001)})
        return flight_view(key.decode(), row)

    wanted = Wanted("delay", False, None, {"carrier": (sortable("a"),) * 2})
    scan = Scan(airport.node, airport.table, range(8), wanted)
    hits, _ = scan.run(500, view)
    airport.node.close()
    assert scan.read_of(0).by == ["delay", "carrier"]
    assert sorted(hit.place[1].decode() for hit in hits) == sorted(in_order(wanted))


BOTH = {"carrier": "u", "phase": "cancelled"}


def read_by(page: dict[str, Any]) -> tuple[list[str], int, int]:
    """The indexes, and the entries and rows of all partitions together."""
    told = [each["scanned"] for each in page["partitions"]]
    return told[0]["by"], sum(each["entries"] for each in told), sum(each["rows"] for each in told)


async def test_the_filter_with_the_fewest_rows_leads_and_the_other_is_only_looked_up(alone: Airport) -> None:
    page = await alone.page(**BOTH, limit=20)
    by, entries, rows = read_by(page)
    assert (len(page["items"]), by, rows, alone.reads) == (20, ["phase", "carrier"], 20, 20)
    assert entries < 3 * 64


async def test_two_filters_that_many_rows_meet_and_none_both_read_no_row(alone: Airport) -> None:
    page = await alone.page(carrier="d", phase="cancelled")
    assert (page["items"], page["cursor"], alone.reads) == ([], None, 0)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({"carrier": "u", "phase": "cancelled"}, "carrier,phase"),
        ({"phase": "cancelled", "order": "-delay"}, "phase,delay"),
        ({"phase": "landed", "order": "delay", "delay_min": 50}, "phase,delay"),
        ({"phase": "landed", "carrier": "u", "gate": "x"}, "phase,carrier,gate"),
    ],
    ids=str,
)
async def test_an_index_of_all_that_is_asked_for_gives_a_page_entry_by_entry(
    several: Airport, query: dict[str, Any], index: str
) -> None:
    page = await several.page(**query, limit=20)
    by, entries, rows = read_by(page)
    assert (len(page["items"]), by, rows, several.reads) == (20, [index], 20, 20)
    assert entries == 21


async def test_an_empty_page_comes_with_a_cursor_only_once_the_time_is_up(
    alone: Airport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "MOST", 5)
    monkeypatch.setattr(lists, "PATIENCE_S", 60)
    nobody = {"carrier": "d", "phase": "cancelled"}
    page = await alone.page(**nobody)
    assert (page["items"], page["cursor"]) == ([], None)
    assert read_by(page)[1] >= of("cancelled")
    monkeypatch.setattr(lists, "PATIENCE_S", 0)
    page = await alone.page(**nobody)
    assert page["items"] == []
    assert page["cursor"]


@pytest.mark.parametrize("method", ["keys_by", "has_entry", "read"])
async def test_a_partition_that_moves_away_while_it_is_read_is_missing(
    alone: Airport, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    there, moving = getattr(alone.node, method), 3

    def asked(table: Table, partition: int, *more: Any) -> Any:
        if partition == moving:
            raise NotReady("the partition is moving to another worker")
        return there(table, partition, *more)

    monkeypatch.setattr(alone.node, method, asked)
    page = await alone.page(**BOTH, limit=500)
    assert [part["partition"] for part in page["partitions"] if part["status"] == "missing"] == [moving]
    here = {flight for flight, _ in FLIGHTS if alone.node.partition(flight.encode()) != moving}
    wanted = Wanted(None, False, None, {field: (sortable(value),) * 2 for field, value in BOTH.items()})
    assert [item["flight"] for item in page["items"]] == [flight for flight in in_order(wanted) if flight in here]


@pytest.mark.parametrize(("closing", "by"), [(50, ["id"]), (400, ["id", "delay"])], ids=str)
def test_a_partition_is_opened_again_while_a_list_of_its_rows_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: int, by: list[str]
) -> None:
    """As after a batch that was not committed."""
    monkeypatch.setattr(store_module, "RELEASE_S", 0.0)
    airport, shown, moving = Airport(tmp_path), list[str](), 3

    def view(partition: int, key: bytes) -> BaseModel | None:
        shown.append(key.decode())
        if len(shown) == closing:
            assert scan.read_of(partition).by == by
            airport.node.store.close(moving)
        if len(shown) == closing + 10:
            airport.node.store.open(moving, "changelog-id")
        row = airport.node.read(airport.table, partition, key)
        return None if row is None else flight_view(key.decode(), row)

    scan = Scan(airport.node, airport.table, range(8), Wanted(None, False, None, {"delay": (sortable(0), None)}))
    _, after = scan.run(2_000, view)
    airport.node.close()
    assert (scan.lost, after) == ({moving}, None)
    assert len(shown) > 500


async def test_the_last_page_says_that_it_is(airport: Airport) -> None:
    page = await airport.page(phase="cancelled", limit=of("cancelled"))
    assert (len(page["items"]), page["cursor"]) == (of("cancelled"), None)


@pytest.mark.parametrize(
    ("order", "cursor", "first"),
    [
        ("id", "aWQAAGYtMDUwMA==", "f-0501"),
        ("-carrier", "LWNhcnJpZXIAM3UAZi0wMDEw", max(name for name, state in FLIGHTS[:10] if state.carrier == "u")),
    ],
)
async def test_a_cursor_of_an_earlier_release_goes_on_where_it_was(
    airport: Airport, order: str, cursor: str, first: str
) -> None:
    """Behind f-0500, and before f-0010 of the carrier u."""
    page = await airport.page(order=order, cursor=cursor, limit=1)
    assert [item["flight"] for item in page["items"]] == [first]


@pytest.mark.parametrize("index", [(), ("carrier",), ("carrier", "carrier")])
def test_what_is_no_index_of_several_fields_is_refused(index: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^flights: \(.*\) is no index; fix: name two fields or more, each once"):
        Table("flights", source=Topic("flights.events.v1"), indexes=("carrier", index))
