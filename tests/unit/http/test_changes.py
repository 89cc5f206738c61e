"""Streams of changes: what they send, where they begin, how many there may be."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.types import Message

from shared.dev.issuer import DevIssuer
from shared.domain.errors import NotReady
from shared.engine.processors import AggregateProcessor
from shared.http.api import Routes, create_api
from shared.http.changes import change_routes, format_id, parse_id
from shared.http.node import Node
from shared.http.peers import Peers
from shared.privacy import sealing
from shared.privacy.persons import PersonKeys
from shared.runtime.settings import Settings
from shared.testing.node import MemoryNode
from tests.accounts.api import account_view, routes
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.unit.http.services import issuer_settings

AGGREGATE = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
CHANGELOG = TOPOLOGY.changelog(ACCOUNTS).name
EVERYWHERE = ",".join(f"{partition}@-1" for partition in range(TOPOLOGY.partitions))

pytestmark = pytest.mark.anyio


@dataclass
class Stream:
    """One request to the application, whose answer is read as it is written: a test client would wait for its end."""

    body: bytes | None = b""
    status: int = 0
    text: str = ""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.text += message.get("body", b"").decode()
        self.arrived.set()

    async def receive(self) -> Message:
        if self.body is not None:
            sent, self.body = self.body, None
            return {"type": "http.request", "body": sent, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    def events(self) -> list[dict[str, Any]]:
        """The events that have data."""
        blocks = [
            dict(line.split(": ", 1) for line in block.splitlines()) for block in self.text.split("\n\n") if block
        ]
        return [{**block, "data": json.loads(block["data"])} for block in blocks if "data" in block]

    @property
    def last_id(self) -> str:
        return [line.removeprefix("id: ") for line in self.text.splitlines() if line.startswith("id: ")][-1]

    async def until(self, count: int) -> list[dict[str, Any]]:
        """The events, once there are at least so many."""
        async with asyncio.timeout(10):
            while len(self.events()) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.events()


class Api:
    """accounts without a port."""

    def __init__(self, node: MemoryNode, routes: Routes = routes) -> None:
        self.app = create_api(node, routes)
        self._answers: list[tuple[Stream, asyncio.Task[None]]] = []

    def ask(self, method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> Stream:
        given = {"content-type": "application/json"} if body else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()]
            + ([(b"content-length", str(len(body)).encode())] if body else []),
            "client": ("127.0.0.1", 1),
            "server": ("worker", 80),
            "scheme": "http",
            "http_version": "1.1",
            "root_path": "",
        }
        stream = Stream(body)
        answer = asyncio.ensure_future(self.app(scope, stream.receive, stream.send))
        self._answers.append((stream, answer))
        return stream

    async def post(self, path: str, body: bytes = b"") -> None:
        answer = self.ask("POST", path, body=body)
        await self.ended(answer)
        assert answer.status == 201, answer.text

    async def follow(self, query: str = "", path: str = "/changes/accounts", **headers: str) -> Stream:
        """A stream that has begun."""
        stream = self.ask("GET", path, query, b"", **headers)
        async with asyncio.timeout(10):
            while not stream.text:
                stream.arrived.clear()
                await stream.arrived.wait()
        return stream

    async def leave(self, stream: Stream) -> None:
        stream.left.set()
        await self.ended(stream)

    async def ended(self, stream: Stream) -> None:
        await asyncio.wait_for(next(answer for asked, answer in self._answers if asked is stream), 10)

    async def close(self) -> None:
        for stream, answer in self._answers:
            stream.left.set()
            await asyncio.wait_for(answer, 10)


@pytest.fixture
async def api(node: MemoryNode) -> AsyncIterator[Api]:
    api = Api(node)
    yield api
    await api.close()


def test_whether_the_keys_have_owners_must_be_said(node: MemoryNode) -> None:
    with pytest.raises(TypeError, match="'owned'"):
        change_routes(node, ACCOUNTS, account_view)  # type: ignore[call-arg]


def told(events: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(key, sequence, balance) of each."""
    return [(e["data"]["key"], e["data"]["sequence"], e["data"]["row"]["balance_cents"]) for e in events]


async def shop(api: Api) -> list[tuple[str, int, int]]:
    """Three accounts are opened and charged in turn; returns what a stream of all accounts has to send."""
    expected = []
    for key in ("ann", "bob", "cid"):
        await api.post(f"/accounts/{key}")
        expected.append((key, 1, 0))
    for turn in (1, 2, 3):
        for key in ("ann", "bob", "cid"):
            await api.post(f"/accounts/{key}/charges", b'{"amount_cents": 5}')
            expected.append((key, 1 + turn, 5 * turn))
    return expected


async def test_every_change_is_sent_once_it_is_committed(api: Api) -> None:
    stream = await api.follow()
    expected = await shop(api)
    assert told(await stream.until(len(expected))) == expected
    assert {event["event"] for event in stream.events()} == {"changed"}


async def test_the_stream_of_a_key_sends_only_its_changes(api: Api) -> None:
    stream = await api.follow("key=bob")
    expected = [each for each in await shop(api) if each[0] == "bob"]
    assert told(await stream.until(len(expected))) == expected


async def test_a_stream_can_be_resumed_after_any_event(api: Api) -> None:
    stream = await api.follow()
    first_id = stream.last_id
    expected = await shop(api)
    events = await stream.until(len(expected))
    for count, last_id in enumerate([first_id, *(event["id"] for event in events[:-1])]):
        resumed = await api.follow(last_event_id=last_id)
        rest = told(await resumed.until(len(expected) - count))
        assert sorted(rest) == sorted(expected[count:])
        await api.leave(resumed)
    await api.post("/accounts/dan")
    end = await api.follow(last_event_id=events[-1]["id"])
    assert told(await end.until(1)) == [("dan", 1, 0)]


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (3, 12)])
async def test_resuming_after_an_id_of_another_version_sends_every_row_again(before: int, now: int) -> None:
    """Offsets in another version's changelog mean nothing in this one's."""
    older, newer = (Api(MemoryNode(replace(TOPOLOGY, version=version), [AGGREGATE])) for version in (before, now))
    stream = await older.follow()
    await shop(older)
    await stream.until(12)
    expected = await shop(newer)
    resumed = await newer.follow(last_event_id=stream.last_id)
    assert sorted(told(await resumed.until(len(expected)))) == sorted(expected)
    await older.close()
    await newer.close()


async def test_a_row_that_shows_nothing_is_not_sent(api: Api) -> None:
    """A refused command changes the row of an account that was never opened: its outcome is recorded."""
    stream = await api.follow()
    refused = api.ask("POST", "/accounts/ghost/charges", body=b'{"amount_cents": 5}')
    await api.ended(refused)
    assert refused.status == 409
    await api.post("/accounts/real")
    assert told(await stream.until(1)) == [("real", 1, 0)]


class Balance(BaseModel):
    balance_cents: Annotated[float, Field(serialization_alias="balanceCents")]


async def test_a_row_is_sent_as_a_get_shows_it() -> None:
    def with_balances(node: Node, peers: Peers) -> list[APIRouter]:
        shown = change_routes(node, ACCOUNTS, lambda *_: Balance(balance_cents=float("nan")), owned=False)
        return [shown, *(router for router in routes(node, peers) if "changes" not in router.tags)]

    api = Api(MemoryNode(TOPOLOGY, [AGGREGATE]), with_balances)
    stream = await api.follow()
    await api.post("/accounts/ann")
    (event,) = await stream.until(1)
    assert event["data"]["row"] == {"balanceCents": None}
    await api.close()


@pytest.mark.parametrize(
    ("query", "last_event_id"),
    [
        ("", "rubbish"),
        ("", ""),
        ("", EVERYWHERE),
        ("", f"{CHANGELOG}:0@1"),
        ("", f"{CHANGELOG}:{EVERYWHERE}".replace("-1", "7")),
        ("key=ann", f"{CHANGELOG}:0@-1,1@-1"),
        ("", f"accounts-chapters-changelog:{EVERYWHERE}"),
        ("", f"orders-accounts-changelog:{EVERYWHERE}"),
    ],
)
async def test_resuming_after_an_id_that_the_stream_never_sent_is_422(api: Api, query: str, last_event_id: str) -> None:
    refused = api.ask("GET", "/changes/accounts", query, last_event_id=last_event_id)
    await api.ended(refused)
    assert refused.status == 422, refused.text
    assert json.loads(refused.text)["code"] == "request.invalid"


async def test_a_parameter_that_a_stream_does_not_take_is_refused(api: Api) -> None:
    """Misspelt, `key` would give the changes of the whole table."""
    refused = api.ask("GET", "/changes/accounts", "kye=ann")
    await api.ended(refused)
    assert (refused.status, "query.kye" in refused.text) == (422, True)


async def test_streams_beyond_the_limit_are_refused() -> None:
    api = Api(MemoryNode(TOPOLOGY, [AGGREGATE], Settings(max_streams=2)))
    first, _ = [await api.follow() for _ in range(2)]
    refused = api.ask("GET", "/changes/accounts")
    await api.ended(refused)
    assert refused.status == 503
    await api.leave(first)
    await api.follow()
    assert api.app.state.streams.open == 2
    await api.close()
    assert api.app.state.streams.open == 0


async def test_one_caller_cannot_take_every_stream(tmp_path: Path) -> None:
    """It is told by its `sub`, whatever its token and its address are."""
    settings = issuer_settings(tmp_path, "accounts").model_copy(update={"max_streams": 3, "max_streams_per_caller": 2})
    api = Api(MemoryNode(TOPOLOGY, [AGGREGATE], settings))

    def bearer(name: str) -> str:
        return f"Bearer {DevIssuer(tmp_path).token('accounts', ['accounts:read'], name)}"

    greedy = [await api.follow("key=ann", authorization=bearer("ann")) for _ in range(2)]
    refused = api.ask("GET", "/changes/accounts", "key=ann", authorization=bearer("ann"))
    await api.ended(refused)
    assert (refused.status, "its limit" in refused.text) == (429, True)
    await api.follow("key=bob", authorization=bearer("bob"))
    await api.leave(greedy[0])
    await api.follow("key=ann", authorization=bearer("ann"))
    await api.close()


async def test_a_stream_ends_when_it_cannot_decrypt_and_resumes_at_the_row_it_could_not_show(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(*_: object) -> dict[str, bytes | None]:
        raise NotReady("the database of personal keys does not answer")

    stream = await api.follow()
    await api.post("/accounts/ann")
    await stream.until(1)
    with structlog.testing.capture_logs() as lines, monkeypatch.context() as down:
        down.setattr(PersonKeys, "of", of)
        down.setattr(PersonKeys, "of_or_new", lambda *_: bytes(64))
        await api.post("/accounts/zoe", b'{"holder": "Zoe"}')
        await api.ended(stream)
    assert [line["log_level"] for line in lines] == ["warning"]
    assert told(stream.events()) == [("ann", 1, 0)]
    resumed = await api.follow(last_event_id=stream.last_id)
    assert told(await resumed.until(1)) == [("zoe", 1, 0)]


async def test_the_keys_for_all_changes_that_come_together_are_asked_for_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a rebuild, when a stream sends every row again."""
    for key, holder in (("ann", "Ann"), ("bob", "Bob"), ("zoe", "Zoe")):
        await api.post(f"/accounts/{key}", json.dumps({"holder": holder}).encode())
    asked: list[list[str]] = []
    of = PersonKeys.of

    def noted(keys: PersonKeys, persons: Collection[str]) -> dict[str, bytes | None]:
        asked.append(sorted(persons))
        return of(keys, persons)

    monkeypatch.setattr(sealing, "KEPT_S", 0)
    monkeypatch.setattr(PersonKeys, "of", noted)
    stream = await api.follow(last_event_id=f"{CHANGELOG}:{EVERYWHERE}")
    events = await stream.until(3)
    assert sorted(event["data"]["row"]["holder"] for event in events) == ["Ann", "Bob", "Zoe"]
    assert asked == [["accounts:ann", "accounts:bob", "accounts:zoe"]]


async def test_a_worker_that_stops_ends_its_streams(api: Api) -> None:
    stream = await api.follow()
    api.app.state.closing.set()
    await api.ended(stream)
    assert stream.status == 200


async def test_a_stream_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(MemoryNode(TOPOLOGY, [AGGREGATE], issuer_settings(tmp_path, "accounts")))
    issuer, scopes, now = DevIssuer(tmp_path), ["accounts:read"], time.time()
    monkeypatch.setattr(
        "shared.http.changes.brokers_clock", SimpleNamespace(now=lambda: now)
    )  # however slow this machine is
    long, short = (issuer.token("accounts", scopes, "ann", exp=now + left_s) for left_s in (3600.0, 0.3))
    lasting = await api.follow("key=ann", authorization=f"Bearer {long}")
    began = time.monotonic()
    await api.ended(await api.follow("key=ann", authorization=f"Bearer {short}"))
    assert time.monotonic() - began >= 0.3
    assert api.app.state.streams.open == 1
    await api.leave(lasting)


def test_ids_are_read_as_they_are_written() -> None:
    positions = {0: -1, 7: 123456789012, 3: 0}
    assert parse_id(format_id(CHANGELOG, positions)) == (CHANGELOG, positions)
