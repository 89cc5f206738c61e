"""The HTTP API of the tests' own accounts: takes commands, shows balances."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from shared.domain.personal import Personal
from shared.domain.row import Row
from shared.http import commands, history, lists
from shared.http.changes import change_routes
from shared.http.commands import Accepted, Commands, Headers
from shared.http.guard import OwnedRouter
from shared.http.history import EventsQuery, History, PastEvents, PastReadingQuery
from shared.http.lists import ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from tests.accounts.domain.commands import Charge, CloseAccount, OpenAccount, Pay
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.state import Account, Open, Unopened
from tests.accounts.topology import ACCOUNTS

Phase = Literal["open", "closed"]


class AccountView(BaseModel):
    """sequence: events so far."""

    account_id: str
    phase: Phase
    holder: Personal
    balance_cents: int
    order_limit_cents: int | None
    sequence: int


class AccountList(ListQuery):
    """order: by id, or by balance."""

    order: Literal["id", "balance_cents", "-balance_cents"] = "id"
    phase: Phase | None = None
    balance_cents_min: int | None = None
    balance_cents_max: int | None = None


def account_view(account_id: str, row: Row[Account]) -> AccountView | None:
    """None for an account that was never opened."""
    account = row.state
    if isinstance(account, Unopened):
        return None
    figures = account if isinstance(account, Open) else Open()  # a closed account owes nothing and has no limits
    return AccountView(
        account_id=account_id,
        phase=account.phase,
        holder=figures.holder,
        balance_cents=figures.balance_cents,
        order_limit_cents=figures.order_limit_cents,
        sequence=row.sequence,
    )


def routes(node: Node, peers: Peers) -> list[APIRouter]:
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

    return [router, change_routes(node, ACCOUNTS, account_view, owned=True)]
