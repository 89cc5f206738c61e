"""Declared routes: what they promise is what the same routes promise by hand, and what does not fit is refused."""
# No `from __future__ import annotations`: FastAPI reads the annotations of the nested functions below.

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from shared.domain.message import Command
from shared.domain.row import Row
from shared.engine.wiring import processors_of
from shared.http import commands, history, lists
from shared.http.api import Routes, create_api, together
from shared.http.changes import change_routes
from shared.http.commands import Accepted, Commands, Headers
from shared.http.guard import OwnedRouter
from shared.http.history import EventsQuery, History, PastEvents, PastReadingQuery
from shared.http.lines import Lines
from shared.http.lists import ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.http.resource import Resource
from shared.testing.node import MemoryNode
from shared.topology.topics import Topology
from tests.accounts.api import AccountView, account_view, routes
from tests.accounts.domain.commands import Charge, CloseAccount, OpenAccount, Pay
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.state import Account
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY


class AccountList(ListQuery):
    order: Literal["id", "balance_cents", "-balance_cents"] = "id"
    phase: Literal["open", "closed"] | None = None
    balance_cents_min: int | None = None
    balance_cents_max: int | None = None


def by_hand(node: Node, peers: Peers) -> list[APIRouter]:
    router = OwnedRouter("account_id", prefix="/accounts", tags=["accounts"])
    accounts = History(node, peers, ACCOUNTS, account_view, DECIDER)
    listed = Lists(node, peers, ACCOUNTS, account_view, AccountList)
    intake = Commands(node, peers, DECIDER, ACCOUNTS, path="/accounts")

    @router.get("", response_model=Page, responses=lists.RESPONSES)
    async def list_accounts(request: Request, query: Annotated[AccountList, Query()]) -> Response:
        return await listed.page(request, query)

    @router.get("/{account_id}", response_model=AccountView, responses=history.RESPONSES)
    async def get_account(request: Request, account_id: PathId, reading: PastReadingQuery) -> Response:
        return await accounts.by_id(request, account_id, reading)

    @router.get("/{account_id}/events", response_model=PastEvents, responses=history.RESPONSES)
    async def get_events(request: Request, account_id: PathId, query: Annotated[EventsQuery, Query()]) -> Response:
        return await accounts.events(request, account_id, query)

    @router.post("/{account_id}", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def open_account(
        request: Request, account_id: PathId, headers: Headers, body: OpenAccount | None = None
    ) -> Response:
        return await intake.submit(request, account_id, body or OpenAccount(), headers)

    @router.post("/{account_id}/charges", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def charge(request: Request, account_id: PathId, body: Charge, headers: Headers) -> Response:
        return await intake.submit(request, account_id, body, headers)

    @router.post("/{account_id}/payments", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def pay(request: Request, account_id: PathId, body: Pay, headers: Headers) -> Response:
        return await intake.submit(request, account_id, body, headers)

    @router.post("/{account_id}/closure", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def close(request: Request, account_id: PathId, headers: Headers) -> Response:
        return await intake.submit(request, account_id, CloseAccount(), headers)

    intake.add_outcome_route(router, "account_id")

    many = OwnedRouter(owned_by="account_id", prefix="/accounts", tags=["accounts"])
    Lines(intake, peers, (OpenAccount, Charge, Pay, CloseAccount), owned_by_id=True).add_route(many)

    return [many, router, change_routes(node, ACCOUNTS, account_view, owned=True)]


def promised(made: Routes, topology: Topology = TOPOLOGY) -> dict[str, Any]:
    return create_api(MemoryNode(topology, processors_of(SERVICE)), made).openapi()


def test_declared_routes_promise_what_the_same_routes_promise_by_hand() -> None:
    assert promised(routes) == promised(by_hand)


def test_a_service_with_history_shows_the_past_for_a_line_of_its_topology() -> None:
    assert "/accounts/{account_id}/events" in promised(routes)["paths"]
    assert "/accounts/{account_id}/events" not in promised(routes, replace(TOPOLOGY, history=None))["paths"]


def test_a_view_may_be_a_function_with_some_of_its_arguments() -> None:
    def shown(currency: str, key: str, row: Row[Account]) -> AccountView | None:
        return account_view(key, row)

    assert "AccountView" in promised(resource(partial(shown, "EUR")))["components"]["schemas"]


def test_a_resource_serves_no_more_than_it_should() -> None:
    listed = Resource("/accounts/{account_id}", ACCOUNTS, account_view, without=("row", "changes"))
    served = {path for path in promised(listed)["paths"] if "accounts" in path}
    assert served == {"/accounts"}


def test_a_route_of_another_kind_stands_beside_a_declared_one() -> None:
    def closed(_node: Node, _peers: Peers) -> list[APIRouter]:
        router = APIRouter(prefix="/closed")

        @router.get("")
        async def count() -> int:
            return 0

        return [router]

    assert {"/accounts", "/closed"} <= promised(together(routes, closed))["paths"].keys()


class Balance(BaseModel):
    balance: int


def balance_view(_: str, row: Row[Account]) -> Balance:
    return Balance(balance=0)


class Unannotated:
    def __call__(self, *_: Any):  # type: ignore[no-untyped-def]
        return None


def resource(view: Callable[[str, Row[Account]], Any] = account_view, **declared: Any) -> Resource[Account]:
    return Resource(declared.pop("path", "/accounts/{account_id}"), declared.pop("table", ACCOUNTS), view, **declared)


class Owing(BaseModel):
    balance_cents: Annotated[int, Field(ge=-500)]


def owing_view(_: str, row: Row[Account]) -> Owing:
    return Owing(balance_cents=0)


def test_a_filter_keeps_the_rules_of_the_field_that_it_compares() -> None:
    """One that no row can have is refused with 422, as the field's own type is."""
    promise = promised(resource(owing_view, filters=("balance_cents",)))["paths"]["/accounts"]["get"]
    asked = {each["name"]: each["schema"] for each in promise["parameters"]}
    assert asked["balance_cents_min"]["minimum"] == -500


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (resource(path="/accounts"), r"^/accounts: does not end with the key's parameter; fix: write it as /accounts"),
        (resource(owner="customer_id"), r"owner='customer_id' is neither its parameter nor .* accounts; fix: name acc"),
        (resource(filters=("balance",)), r"AccountView has no field 'balance'; fix: filter by a field that the view s"),
        (resource(balance_view, filters=("balance",)), r"accounts has no index 'balance'; fix: add it to indexes in t"),
        (resource(sorts=("sequence",)), r"the table accounts has no index for 'sequence'; fix: add it to indexes in t"),
        (resource(commands={"": Pay}), r"it takes commands, and has no decider of its table; fix: give it decider=, "),
        (
            resource(table=replace(ACCOUNTS, source=EVENTS), decider=DECIDER, commands={"": Pay}),
            r"it takes commands, and has no decider of its table; fix: give it decider=, and the table that",
        ),
        (resource(decider=DECIDER, commands={"": Command}), r"does not know Command; fix: add it to the decider"),
        (
            resource(decider=DECIDER, commands={"": Pay}, names={"payments": "pay"}),
            r"no command is posted to \['payments'\]; fix: name a path of `commands`",
        ),
        (resource(partial(lambda *_: None)), r"^/accounts/{account_id}: partial does not say what it shows; fix: ann"),
        (resource(Unannotated()), r"^/accounts/{account_id}: Unannotated does not say what it shows; fix: annotate"),
        (resource(lambda *_: None), r"<lambda> does not say what it shows; fix: annotate it with `-> SomeView | None`"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_start_up(wrong: Resource[Account], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        promised(wrong)
