"""Personal fields over HTTP: shown to those who may read, and nowhere else readable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from shared.domain.errors import NotReady
from shared.domain.row import Row
from shared.engine.wiring import processors_of
from shared.http.api import create_api
from shared.http.changes import change_routes
from shared.http.lists import ListQuery, Lists
from shared.http.node import Present
from shared.http.peers import Peers
from shared.http.queries import Queries
from shared.privacy import sealing
from shared.privacy.persons import PersonKeys, url_of
from shared.runtime.settings import Settings, SettingsError
from shared.testing.node import MemoryNode
from tests.accounts.api import AccountView, account_view, routes
from tests.accounts.domain.state import Account, Open
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, TOPOLOGY
from tests.unit.http.services import client_of
from tests.unit.http.test_protection import PROD

pytestmark = pytest.mark.anyio

NAME = "Zoë Ångström"


@pytest.fixture
def node(tmp_path: Path) -> MemoryNode:
    return MemoryNode(TOPOLOGY, processors_of(SERVICE), Settings(data_dir=tmp_path))


@pytest.fixture
async def http(node: MemoryNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_api(node, routes)) as client:
        yield client


async def _holders(http: httpx.AsyncClient) -> dict[str, str | None]:
    """The holder of account `zoe`, in every answer that shows it."""
    row = await http.get("/accounts/zoe")
    then = await http.get("/accounts/zoe", params={"as_of": 1})
    listed = await http.get("/accounts")
    events = await http.get("/accounts/zoe/events")
    return {
        "row": row.json()["holder"],
        "as_of": then.json()["holder"],
        "list": listed.json()["items"][0]["holder"],
        "events": events.json()["items"][0]["data"]["holder"],
    }


async def test_a_personal_field_is_shown_until_its_person_is_forgotten(
    http: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "KEPT_S", 0)
    assert (await http.post("/accounts/zoe", json={"holder": NAME})).status_code == 201
    assert set((await _holders(http)).values()) == {NAME}
    etag = (await http.get("/accounts/zoe")).headers["etag"]
    PersonKeys(url_of(node.settings)).forget("accounts:zoe")
    assert set((await _holders(http)).values()) == {None}
    now = await http.get("/accounts/zoe", headers={"If-None-Match": etag})
    assert (now.status_code, now.json()["sequence"]) == (200, 1)


async def test_no_record_holds_the_text(http: httpx.AsyncClient, node: MemoryNode) -> None:
    await http.post("/accounts/zoe", json={"holder": NAME})
    records = b"".join(record for log in node.logs.values() for record in log)
    assert b"sealed:1:" in records
    assert b"ngstr" not in records  # two letters would be in some of the sealed texts


async def test_the_same_command_again_has_the_same_outcome(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "open-zoe"}
    answers = [await http.post("/accounts/zoe", json={"holder": NAME}, headers=headers) for _ in range(2)]
    assert [(answer.status_code, answer.json()["sequence"]) for answer in answers] == [(201, 1)] * 2
    other = await http.post("/accounts/zoe", json={"holder": "Zoe"}, headers=headers)
    assert other.status_code == 409


async def test_nothing_personal_is_taken_of_who_was_forgotten(http: httpx.AsyncClient, node: MemoryNode) -> None:
    PersonKeys(url_of(node.settings)).forget("accounts:zoe")
    refused = await http.post("/accounts/zoe", json={"holder": NAME})
    assert (refused.status_code, refused.json()["code"]) == (409, "person.forgotten")
    assert (await http.post("/accounts/zoe")).status_code == 201


async def test_a_repeat_after_its_person_was_forgotten_is_told_where_its_outcome_is(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    async def open_again(key: str) -> httpx.Response:
        return await http.post("/accounts/zoe", json={"holder": NAME}, headers={"Idempotency-Key": key})

    first = await open_again("open-zoe")
    PersonKeys(url_of(node.settings)).forget("accounts:zoe")
    repeat, other = await open_again("open-zoe"), await open_again("another")
    assert [(each.status_code, each.json()["code"]) for each in (repeat, other)] == [(409, "person.forgotten")] * 2
    assert "a command with this Idempotency-Key was decided before" in repeat.json()["detail"]
    assert (await http.get(repeat.headers["location"])).json() == first.json()
    assert ("location" in other.headers, "decided before" in other.json()["detail"]) == (False, False)


@pytest.mark.parametrize(("text", "says"), [("x" * 1001, "holder: a personal text has at most 1000"), ("\ud800", "")])
async def test_a_text_that_cannot_be_kept_is_refused(http: httpx.AsyncClient, text: str, says: str) -> None:
    body = b'{"holder":"%b"}' % text.encode("ascii", "backslashreplace")
    refused = await http.post("/accounts/zoe", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == 422
    assert says in refused.json()["detail"]


async def test_without_its_database_a_worker_asks_to_try_again(http: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "person-keys.sqlite3").write_bytes(b"not a database" * 100)
    refused = await http.post("/accounts/zoe", json={"holder": NAME})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (await http.post("/accounts/other")).status_code == 201


async def test_a_list_without_its_keys_is_no_list_of_nothing(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads page by page would take it for the end."""
    monkeypatch.setattr(sealing, "KEPT_S", 0)
    for key in ("ann", "bob", "zoe"):  # in several partitions
        assert (await http.post(f"/accounts/{key}", json={"holder": NAME})).status_code == 201
    asked: list[Collection[str]] = []

    def of(_: PersonKeys, persons: Collection[str]) -> dict[str, bytes | None]:
        asked.append(persons)
        raise NotReady("the database of personal keys does not answer")

    monkeypatch.setattr(PersonKeys, "of", of)
    refused = await http.get("/accounts")
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert [*map(sorted, asked)] == [["accounts:ann", "accounts:bob", "accounts:zoe"]]


UNNAMED = PROD.model_copy(update={"person_keys": Settings().person_keys})


def test_in_production_the_database_must_be_named() -> None:
    with pytest.raises(SettingsError, match="ONEFOLD_PERSON_KEYS is not set, and there are personal fields"):
        create_api(MemoryNode(TOPOLOGY, [], UNNAMED), routes)


class Holders(BaseModel):
    accounts: tuple[AccountView, ...]


def holders(_key: str, _row: Row[Any]) -> Holders | None:
    return None


SHOWN: list[Callable[[MemoryNode, Present], object]] = [
    lambda node, present: Queries(node, Peers("accounts", node.settings), ACCOUNTS, present),
    lambda node, present: Lists(node, Peers("accounts", node.settings), ACCOUNTS, present, ListQuery),
    lambda node, present: change_routes(node, ACCOUNTS, present, owned=True),
]


@pytest.mark.parametrize("show", SHOWN, ids=["by id", "list", "changes"])
def test_what_only_shows_personal_text_needs_the_database_too(show: Callable[[MemoryNode, Present], object]) -> None:
    node = MemoryNode(TOPOLOGY, [], UNNAMED)
    with pytest.raises(SettingsError, match="ONEFOLD_PERSON_KEYS is not set"):
        show(node, account_view)
    show(node, lambda *_: None)
    show(node, partial(account_view))


@pytest.mark.parametrize("show", SHOWN, ids=["by id", "list", "changes"])
def test_a_view_with_a_part_that_would_stay_encrypted_is_refused_at_the_start(
    node: MemoryNode, show: Callable[[MemoryNode, Present], object]
) -> None:
    with pytest.raises(ValueError, match=r"Holders\.accounts: what is personal in it"):
        show(node, holders)


class BareView(BaseModel):
    holder: str | None


def bare_view(_key: str, row: Row[Account]) -> BareView | None:
    return BareView(holder=row.state.holder) if isinstance(row.state, Open) else None


@pytest.mark.parametrize("show", SHOWN, ids=["by id", "list", "changes"])
def test_a_view_that_would_show_encrypted_text_is_refused_at_the_start(
    node: MemoryNode, show: Callable[[MemoryNode, Present], object]
) -> None:
    with pytest.raises(ValueError, match=r"Open\.holder is personal, but BareView\.holder is not"):
        show(node, bare_view)
