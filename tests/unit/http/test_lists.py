"""A list costs as much as its page, however many rows there are; an order or cursor it cannot serve is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import count, islice
from threading import Event as Flag
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query, Request, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.message import Event
from shared.domain.row import Row
from shared.domain.state import State
from shared.domain.times import Day, Instant
from shared.engine.processors import AggregateProcessor, ProjectionProcessor
from shared.http import lists as lists_module
from shared.http import scans
from shared.http.api import Routes, create_api
from shared.http.lists import ListQuery, Lists
from shared.http.node import Node
from shared.http.peers import Peers
from shared.http.scans import FIRST_LOOK, MOST, ROW
from shared.runtime.settings import Settings
from shared.tables.indexing import entry, key_of
from shared.testing.node import MemoryNode
from shared.testing.scenario import happened
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.api import routes
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.state import Closed, Open, Unopened
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.unit.http.services import SERVICES, api_of, client_of, own_api
from tests.unit.http.test_peers import recording

pytestmark = pytest.mark.anyio

LIMIT = 50
PARTITIONS = TOPOLOGY.partitions


class Endless(MemoryNode):
    """Every partition has endlessly many accounts in these states: a list that reads to the last never answers."""

    def __init__(self, *states: Open | Closed) -> None:
        super().__init__(TOPOLOGY, [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)])
        self.reads = 0
        self._states = states or (Open(),)

    def _state(self, key: bytes) -> Open | Closed:
        return self._states[int(key.partition(b"-")[0]) % len(self._states)]

    def keys(self, table: Table, partition: int, after: bytes = b"") -> Iterator[bytes]:
        return (key for key in _keys(partition) if key > after)

    def keys_by(
        self, table: Table, partition: int, field: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        """Those with the first value that is not behind `start`: they have no end."""
        for value in sorted({getattr(state, field) for state in self._states}):
            if entry(field, value, b"\xff") > start:
                keys = (key for key in _keys(partition) if getattr(self._state(key), field) == value)
                return (found for key in keys if (found := entry(field, value, key)) > start)
        return iter(())

    def has_entry(self, table: Table, partition: int, wanted: bytes) -> bool:
        key = key_of(wanted)
        return wanted in {entry(field, getattr(self._state(key), field), key) for field in ("phase", "balance_cents")}

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any]:
        self.reads += 1
        return Row(1, self._state(key), {}, 0)


def _keys(partition: int) -> Iterator[bytes]:
    return (f"{number:012}-{partition}".encode() for number in count())


@pytest.fixture
def endless() -> Endless:
    return Endless()


async def listed(node: Endless, **query: Any) -> dict[str, Any]:
    async with client_of(create_api(node, routes)) as http:
        page: dict[str, Any] = (await http.get("/accounts", params={"limit": LIMIT, **query})).json()
        return page


@pytest.mark.parametrize("order", ["id", "balance_cents"])
async def test_a_page_of_endless_rows_reads_no_more_rows_than_it_has(endless: Endless, order: str) -> None:
    page = await listed(endless, order=order)
    assert len(page["items"]) == LIMIT
    assert page["cursor"]
    assert endless.reads == LIMIT


@pytest.mark.parametrize("partitions", ["3", "0,1,2,3,4,5,6,7"])
async def test_filters_that_nothing_meets_together_give_up_and_say_where_to_go_on(
    partitions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions a worker has, else it answers too late for its peers."""
    monkeypatch.setattr(lists_module, "PATIENCE_S", 0)
    endless = Endless(Open(balance_cents=1), Closed())
    page = await listed(endless, phase="closed", balance_cents_min=1, partitions=partitions)
    assert page["items"] == []
    assert page["cursor"]
    assert endless.reads == sum(each["scanned"]["rows"] for each in page["partitions"]) <= MOST // ROW


@pytest.mark.parametrize("order", ["id", "balance_cents"])
@pytest.mark.parametrize("query", [{"balance_cents_min": 1}, {"phase": "closed"}], ids=str)
async def test_a_filter_that_nothing_meets_ends_soon_whatever_the_order(
    endless: Endless, query: dict[str, Any], order: str
) -> None:
    page = await listed(endless, order=order, **query)
    assert (page["items"], page["cursor"]) == ([], None)
    assert endless.reads <= FIRST_LOOK // ROW


async def test_a_filter_for_one_value_reads_only_the_rows_that_have_it(endless: Endless) -> None:
    page = await listed(endless, phase="closed")
    assert (page["items"], page["cursor"], endless.reads) == ([], None, 0)


async def test_lists_beyond_the_limit_are_429_and_half_of_it_is_not_for_one_client() -> None:
    """While the two that may be read for the first client are under way."""
    node = Endless()
    node.settings = Settings(max_readers=4)
    api, reading = create_api(node, routes), Flag()
    node.read = lambda *_: Row(0, Unopened(), {}, 0) if reading.wait(60) else None  # type: ignore[assignment,method-assign]
    async with client_of(api) as first, client_of(api, "192.0.2.1") as second:
        query = {"partitions": "3"}
        asked = [asyncio.ensure_future(first.get("/accounts", params=query)) for _ in range(3)]
        (refused,), under_way = await asyncio.wait(asked, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert (refused.result().status_code, refused.result().headers["retry-after"]) == (429, "1")
        assert (await first.get("/accounts/ann/events")).status_code == 429
        others = asyncio.ensure_future(second.get("/accounts", params=query))
        reading.set()
        assert [answer.status_code for answer in await asyncio.gather(*under_way, others)] == [200, 200, 200]
        assert (await first.get("/accounts", params=query)).status_code == 200


@pytest.mark.parametrize("order", ["id", "balance_cents"])
async def test_a_bound_that_64_bits_cannot_hold_bounds_nothing(endless: Endless, order: str) -> None:
    page = await listed(endless, order=order, balance_cents_min=-(2**63) - 1, balance_cents_max=2**63)
    assert len(page["items"]) == LIMIT


@pytest.mark.parametrize("order", ["id", "balance_cents", "-balance_cents"])
async def test_a_closed_account_is_found_by_the_balance_it_shows(http: httpx.AsyncClient, order: str) -> None:
    for path in ("open", "gone", "gone/closure"):
        assert (await http.post(f"/accounts/{path}")).status_code == 201
    for bounds in ({"balance_cents_min": 0}, {"balance_cents_max": 0}):
        page = (await http.get("/accounts", params={"order": order, **bounds})).json()
        found = {each["account_id"]: each["balance_cents"] for each in page["items"]}
        assert found == {"open": 0, "gone": 0}


class Billed(Event):
    TYPE = "bill.sent"

    due: Day
    remind_at: Instant
    paid: bool
    limit: int
    note: str


class Bill(State):
    due: Day
    remind_at: Instant
    paid: bool
    limit: int
    note: str


class BillView(BaseModel):
    bill: str
    due: Day


def bill_view(bill: str, row: Row[Bill]) -> BillView:
    return BillView(bill=bill, due=row.state.due)


class BillList(ListQuery):
    model_config = ConfigDict(serialize_by_alias=True)

    order: Literal["id", "due", "-due", "remind_at", "-limit", "note", "-note"] = "id"
    due: Day | None = None
    due_min: Day | None = None
    due_max: Day | None = None
    remind_at_min: Instant | None = None
    paid: bool | None = None
    limit_min: int | None = None
    limit_max: Annotated[int | None, Field(alias="at_most")] = None
    remind_at_max: Annotated[Instant | None, Field(validation_alias=AliasChoices("until", "before"))] = None


BILLED = Topic("billing.events.v1")
BILLS = Table("bills", source=BILLED, indexes=("due", "remind_at", "paid", "limit", "note"))
BILLING = Topology("billing", topics=(BILLED,), tables=(BILLS,))
PROJECTION = ProjectionProcessor(
    Projection(
        BILLS, lambda _view, event, _key: Bill(**event.data.model_dump()), initial=None, events=(Billed,), state=Bill
    )
)


def billing(node: Node, peers: Peers) -> list[APIRouter]:
    router = APIRouter()
    lists = Lists(node, peers, BILLS, bill_view, BillList)

    @router.get("/bills")
    async def list_bills(request: Request, query: Annotated[BillList, Query()]) -> Response:
        return await lists.page(request, query)

    return [router]


async def page_of_bills(node: MemoryNode, **query: Any) -> dict[str, Any]:
    return await page_of(billing, node, **query)


async def page_of(service: Routes, node: MemoryNode, **query: Any) -> dict[str, Any]:
    api = create_api(node, service)
    async with client_of(api) as http, api.router.lifespan_context(api):
        answer = await http.get("/bills", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def bills(node: MemoryNode, **query: Any) -> list[str]:
    """The ids of the bills in the list."""
    return [item["bill"] for item in (await page_of_bills(node, **query))["items"]]


@pytest.fixture
async def billed() -> MemoryNode:
    """Bill b is due on the first of May, a on the second, c on the third; b is paid. Each is limited to its day."""
    node = MemoryNode(BILLING, [PROJECTION])
    for day, bill in enumerate("bac", 1):
        await send(node, bill, day)
    return node


async def send(node: MemoryNode, bill: str, day: int) -> None:
    due = datetime(2026, 5, day, tzinfo=UTC)
    data = Billed(due=due.date(), remind_at=due, paid=bill == "b", limit=day, note="語" * 1330 + bill)
    event = EventEnvelope(
        event_id=bill,
        type=Billed.TYPE,
        schema_version=1,
        aggregate_id=bill,
        sequence=1,
        occurred_at=due,
        correlation_id=bill,
        data=data,
    )
    await node.append(BILLED, bill.encode(), EventCodec((Billed,)).encode(event))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"order": "due"}, "bac"),
        ({"order": "-due"}, "cab"),
        ({"order": "due", "due_min": "2026-05-02"}, "ac"),
        ({"order": "-due", "due_max": "2026-05-02"}, "ab"),
        ({"due": "2026-05-03"}, "c"),
        ({"order": "remind_at", "remind_at_min": "2026-05-02T00:00:00Z"}, "ac"),
        ({"paid": "true"}, "b"),
        ({"paid": "false"}, "ac"),
    ],
)
async def test_days_instants_and_booleans_order_and_filter(
    billed: MemoryNode, query: dict[str, str], expected: str
) -> None:
    assert await bills(billed, **query) == list(expected)


@pytest.mark.parametrize(
    ("query", "expected"),
    [({}, "abc"), ({"limit": 2}, "ab"), ({"order": "-limit"}, "cab"), ({"limit_min": 2}, "ac")],
)
async def test_a_parameter_of_every_list_does_not_filter_by_an_index_of_its_name(
    billed: MemoryNode, query: dict[str, Any], expected: str
) -> None:
    assert await bills(billed, **query) == list(expected)


class TypoList(ListQuery):
    notes: str | None = None


class TypoBoundList(ListQuery):
    limits_max: int | None = None


class FloatBoundList(ListQuery):
    limit_min: Annotated[float | None, Field(alias="at_least")] = None


class TextList(ListQuery):
    paid: str | None = None


class TypoOrderList(ListQuery):
    order: Literal["id", "-dues"] = "id"


class DownwardsList(ListQuery):
    order: Literal["id", "-id"] = "id"


class AnyOrderList(ListQuery):
    order: str = "id"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (TypoList, r"^TypoList\.notes: the table bills has no index 'notes'; fix: add it to indexes in topology\.py"),
        (TypoBoundList, r"^TypoBoundList\.limits_max: the table bills has no index 'limits'; fix: add it to indexes"),
        (
            FloatBoundList,
            r"^FloatBoundList\.limit_min is number in JSON, 'limit' in the table bills integer; fix: give it",
        ),
        (TextList, r"^TextList\.paid is string in JSON, 'paid' in the table bills boolean; fix: give it"),
        (TypoOrderList, r"^TypoOrderList\.order: the table bills has no index for '-dues'; fix: add it to indexes"),
        (DownwardsList, r"^DownwardsList\.order: '-id' is none, ids go upwards only; fix: leave it out"),
        (AnyOrderList, r"^AnyOrderList\.order is not a Literal; fix: "),
    ],
)
def test_a_filter_or_an_order_that_its_index_cannot_serve_is_refused(query: type[ListQuery], said: str) -> None:
    node = MemoryNode(BILLING, [PROJECTION])
    with pytest.raises(ValueError, match=said):
        Lists(node, Peers("billing", node.settings), BILLS, bill_view, query)


class ChoiceList(ListQuery):
    note: Literal["open", None] = None


async def test_a_filter_whose_type_its_schema_does_not_tell_is_served(billed: MemoryNode) -> None:
    Lists(billed, Peers("billing", billed.settings), BILLS, bill_view, ChoiceList)


async def test_a_list_takes_only_the_query_that_was_checked() -> None:
    node = MemoryNode(BILLING, [])
    lists = Lists(node, Peers("billing", node.settings), BILLS, bill_view, ListQuery)
    with pytest.raises(TypeError, match="of bills takes ListQuery, not TypoList; fix: give its constructor TypoList"):
        await lists.page(Request({"type": "http"}), TypoList())


async def test_another_worker_is_asked_for_the_same_booleans(monkeypatch: pytest.MonkeyPatch) -> None:
    async with recording() as other:
        node = MemoryNode(BILLING, [])
        monkeypatch.setattr(node, "serves", lambda *_: False)
        monkeypatch.setattr(node, "owner", lambda *_: other.url)
        assert await bills(node, paid="0") == []
    asked = parse_qs(urlsplit(other.heads[0][0].split(" ")[1]).query)
    assert (asked["paid"], asked["complete"]) == (["false"], ["false"])


async def test_a_partition_that_another_worker_was_not_asked_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be an older copy of one that is served here."""
    node = MemoryNode(BILLING, [PROJECTION])
    monkeypatch.setattr(node, "serves", lambda _, partition: partition != 3)
    covered = [{"partition": partition, "status": "stale", "lag": 9} for partition in (3, 4)]
    async with recording() as other:
        other.body = json.dumps(
            {"parts": [{"covered": each, "found": [], "frontier": None} for each in covered]}
        ).encode()
        monkeypatch.setattr(node, "owner", lambda *_: other.url)
        page = await page_of_bills(node)
    assert [each["partition"] for each in page["partitions"] if each["status"] == "stale"] == [3]


async def test_the_part_of_a_worker_of_an_earlier_release_is_merged(
    billed: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads each partition for itself, and does not tell what it has scanned."""
    theirs = next(p for p in range(PARTITIONS) if p not in {billed.partition(bill.encode()) for bill in "abc"})
    monkeypatch.setattr(billed, "serves", lambda _, partition: partition != theirs)
    covered = {"partition": theirs, "status": "fresh", "lag": 0, "position": "billing.events.v1/3@7"}
    found = [[["", bill.encode().hex()], {"bill": bill}] for bill in ("aa", "bb")]
    async with recording() as other:
        part = {"covered": covered, "found": found, "frontier": ["", b"bb".hex()]}
        other.body = json.dumps({"parts": [part]}).encode()
        monkeypatch.setattr(billed, "owner", lambda *_: other.url)
        page = await page_of_bills(billed)
    assert [item["bill"] for item in page["items"]] == ["a", "aa", "b", "bb"]
    assert page["cursor"]
    assert [each["partition"] for each in page["partitions"] if each["scanned"] is None] == [theirs]


async def test_another_worker_is_asked_by_the_names_that_a_request_has(
    billed: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recording() as other:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(billed, "serves", lambda *_: False)
            elsewhere.setattr(billed, "owner", lambda *_: other.url)
            assert await bills(billed, at_most=1, before="2026-05-03T00:00:00Z") == []
    asked = parse_qs(urlsplit(other.heads[0][0].split(" ")[1]).query)
    assert await bills(billed, **asked) == ["b"]


class Listed(NamedTuple):
    """A list of a service, and the parameters it takes."""

    service: str
    path: str
    parameters: tuple[str, ...]


def every_list() -> Iterator[Listed]:
    for service in SERVICES:
        for path, methods in api_of(service).openapi()["paths"].items():
            names = tuple(each["name"] for each in methods.get("get", {}).get("parameters", ()))
            if "order" in names:
                yield Listed(service, path, names)


LISTS = list(every_list())


async def refusal(api: FastAPI, path: str, field: str, value: str) -> str:
    async with client_of(api) as http:
        answer = await http.get(path, params={field: value})
    assert answer.status_code == 422, answer.text
    return str(answer.json()["detail"])


@pytest.mark.parametrize("found", LISTS, ids="{0.service} {0.path}".format)
async def test_an_order_that_a_list_does_not_have_is_refused(found: Listed) -> None:
    """By id it goes up only: paged the other way, rows would be left out."""
    assert (await refusal(api_of(found.service), found.path, "order", "-id")).startswith("query.order: ")


@pytest.mark.parametrize("made_up", [b"[" * 1400, b"id\x00a", b"\xff\x00a\x00b"])
async def test_a_made_up_cursor_is_refused(made_up: bytes) -> None:
    said = await refusal(own_api(), "/accounts", "cursor", base64.b64encode(made_up).decode())
    assert said.endswith("not a cursor of a list")


@pytest.mark.parametrize("asked", ["99", "0,8"])
async def test_a_partition_that_does_not_exist_is_refused(asked: str) -> None:
    """Without it the list would claim to be complete."""
    assert await refusal(own_api(), "/accounts", "partitions", asked) == "query.partitions: there are partitions 0 to 7"


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("order", ["id", "due", "-due"])
async def test_the_few_rows_that_can_match_are_listed_in_order_wherever_the_list_finds_that_they_are_few(
    order: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "FIRST_LOOK", 2)
    node = MemoryNode(BILLING, [PROJECTION])
    bills = islice((f"bill-{n}" for n in count(10) if node.partition(b"bill-%d" % n) == 0), 12)
    days = {bill: n * 5 % 12 + 1 for n, bill in enumerate(bills)}
    for bill, day in days.items():
        await send(node, bill, day)
    wanted = sorted((bill for bill in days if days[bill] >= 9), key=lambda bill: (order == "id") or days[bill])
    found, cursor = list[str](), dict[str, str]()
    while len(found) < 20:
        page = await page_of_bills(node, order=order, limit_min=9, limit=limit, **cursor)
        found += [item["bill"] for item in page["items"]]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert found == (wanted[::-1] if order.startswith("-") else wanted)


@pytest.mark.parametrize("order", ["id", "due", "-due"])
async def test_short_pages_lead_to_every_match(billed: MemoryNode, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MOST", 1)
    monkeypatch.setattr(lists_module, "PATIENCE_S", 0)
    found, cursor, short = list[str](), dict[str, str](), 0
    while True:
        page = await page_of_bills(billed, order=order, limit_min=2, limit=1, **cursor)
        found += [item["bill"] for item in page["items"]]
        if page["cursor"] is None:
            break
        short += not page["items"]
        assert page["cursor"] != cursor.get("cursor")
        cursor = {"cursor": page["cursor"]}
    assert found == sorted("ac", reverse=order.startswith("-"))
    assert short


class Noted(Event):
    TYPE = "task.noted"

    due: Day | None = None
    tag: str | list[str] = ""
    gone: bool = False


class Task(State):
    due: Day | None
    tag: str | list[str]


class TaskList(ListQuery):
    order: Literal["id", "due", "-due"] = "id"
    due_min: Day | None = None
    due_max: Day | None = None


NOTED = Topic("tasks.events.v1")
TASKS = Table("tasks", source=NOTED, indexes=("due", "tag"))
TASK_PROJECTION: Projection[Noted, Task | None] = Projection(
    TASKS,
    lambda _view, event, _key: None if event.data.gone else Task(due=event.data.due, tag=event.data.tag),
    initial=None,
    events=(Noted,),
    state=Task | None,
)


def tasking(node: Node, peers: Peers) -> list[APIRouter]:
    router = APIRouter()
    lists = Lists(node, peers, TASKS, lambda task, row: BillView(bill=task, due=date(2026, 5, 1)), TaskList)

    @router.get("/bills")
    async def list_tasks(request: Request, query: Annotated[TaskList, Query()]) -> Response:
        return await lists.page(request, query)

    return [router]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "abcd"),
        ({"order": "due"}, "bdac"),
        ({"order": "-due"}, "cadb"),
        ({"due_max": "2026-05-01"}, "a"),
        ({"due_max": "2026-05-01", "order": "due"}, "a"),
        ({"due_max": "2026-05-02", "order": "-due"}, "ca"),
        ({"due_min": "2026-05-02"}, "c"),
    ],
)
async def test_rows_without_a_value_are_listed_and_in_no_range(query: dict[str, str], expected: str) -> None:
    """b has no date, d no state at all; a has several tags, which no index can sort."""
    node = MemoryNode(Topology("tasks", topics=(NOTED,), tables=(TASKS,)), [ProjectionProcessor(TASK_PROJECTION)])
    told = {
        "a": Noted(due=date(2026, 5, 1), tag=["home", "work"]),
        "b": Noted(),
        "c": Noted(due=date(2026, 5, 2)),
        "d": Noted(gone=True),
    }
    for task, event in told.items():
        await node.append(NOTED, task.encode(), TASK_PROJECTION.event_codec.encode(happened(event, aggregate_id=task)))
    assert [item["bill"] for item in (await page_of(tasking, node, **query))["items"]] == list(expected)


@pytest.mark.parametrize("order", ["note", "-note"])
async def test_a_page_of_long_texts_has_a_next_page(billed: MemoryNode, order: str) -> None:
    api = create_api(billed, billing)
    listed, cursor = list[str](), dict[str, str]()
    async with client_of(api) as http:
        for _ in "abc":
            answer = await http.get("/bills", params={"order": order, "limit": 1, **cursor})
            assert answer.status_code == 200, answer.text
            listed += [item["bill"] for item in answer.json()["items"]]
            cursor = {"cursor": answer.json()["cursor"]}
    assert listed == sorted("abc", reverse=order.startswith("-"))
