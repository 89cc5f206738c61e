"""The client against scripted answers, and against accounts in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import httpx
import pytest

from shared.http.client import AsyncClient, Client, Refused, Unavailable, path_of
from shared.http.history import PastEvent
from shared.testing.node import MemoryNode
from tests.accounts.api import AccountView
from tests.accounts.domain.commands import Charge

pytestmark = pytest.mark.anyio

Answer = httpx.Response | type[Exception]
ACCEPTED = httpx.Response(201, json={"command_id": "c", "sequence": 3}, headers={"Onefold-Position": "t/0@7"})
TAKEN = httpx.Response(202, json={"command_id": "c", "sequence": None}, headers={"Location": "/accounts/a/commands/c"})
BUSY = httpx.Response(503, json={}, headers={"Retry-After": "1"})
MANY = httpx.Response(429, json={}, headers={"Retry-After": "2"})
UNKNOWN = httpx.Response(404, json={"code": "command.unknown", "detail": "not yet"})
ROW = AccountView(
    account_id="a",
    phase="open",
    holder=None,
    balance_cents=7,
    order_limit_cents=None,
    sequence=3,
).model_dump()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were requested; only they make time pass."""
    pauses: list[float] = []
    start = time.monotonic()
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr("time.monotonic", lambda: start + sum(pauses))
    return pauses


class Script:
    """Gives its answers in turn, and records the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[httpx.Request] = []
        self._answers = iter(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = next(self._answers)
        if isinstance(answer, httpx.Response):
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        raise answer("scripted")


def client(script: Callable[[httpx.Request], httpx.Response], deadline_s: float = 30.0) -> Client:
    http = httpx.Client(transport=httpx.MockTransport(script))
    return Client(["http://one", "http://two"], http=http, deadline_s=deadline_s)


def test_a_repeated_command_keeps_its_key_and_changes_the_worker(slept: list[float]) -> None:
    script = Script(httpx.ConnectError, BUSY, MANY, ACCEPTED)
    assert client(script).send("/accounts/a/charges", Charge(amount_cents=5)).sequence == 3
    assert len({request.headers["idempotency-key"] for request in script.asked}) == 1
    assert [request.url.host for request in script.asked] == ["one", "two", "one", "one"]
    assert slept[1] >= 1
    assert slept[2] >= 2
    assert script.asked[0].content == b'{"amount_cents":5}'


def test_an_accepted_command_is_polled_until_it_is_decided(slept: list[float]) -> None:
    script = Script(TAKEN, UNKNOWN, BUSY, ACCEPTED)
    assert client(script).send("/accounts/a").sequence == 3
    assert [(request.method, request.url.path) for request in script.asked] == [
        ("POST", "/accounts/a"),
        *[("GET", "/accounts/a/commands/c")] * 3,
    ]


def test_a_refusal_is_raised_with_its_code_and_not_repeated(slept: list[float]) -> None:
    script = Script(httpx.Response(409, json={"code": "account.closed", "detail": "it is closed"}))
    with pytest.raises(Refused) as refused:
        client(script).send("/accounts/a")
    assert (refused.value.status, refused.value.code, refused.value.detail) == (409, "account.closed", "it is closed")
    assert len(script.asked) == 1


def test_an_error_without_a_problem_body_is_raised_as_a_refusal(slept: list[float]) -> None:
    with pytest.raises(Refused, match="unexpected: <html>"):
        client(Script(httpx.Response(404, text="<html>"))).send("/accounts/a")


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateways_error_is_retried(slept: list[float], status: int) -> None:
    """The worker behind it may have taken the command."""
    gateway = httpx.Response(status, text="<html>")
    script = Script(gateway, ACCEPTED)
    assert client(script).send("/accounts/a").sequence == 3
    assert len({request.headers["idempotency-key"] for request in script.asked}) == 1
    assert [request.url.host for request in script.asked] == ["one", "two"]
    with pytest.raises(Unavailable) as unavailable:
        client(Script(*[gateway] * 1000)).send("/accounts/a", key="mine")
    assert unavailable.value.key == "mine"


def test_the_deadline_ends_the_repeats_and_the_error_has_the_key(slept: list[float]) -> None:
    with pytest.raises(Unavailable) as unavailable:
        client(Script(*[BUSY] * 1000), deadline_s=20.0).send("/accounts/a", key="mine")
    assert unavailable.value.key == "mine"
    assert sum(slept) <= 30.0


def test_an_undecided_command_ends_at_the_deadline_too(slept: list[float]) -> None:
    with pytest.raises(Unavailable, match="not decided"):
        client(Script(TAKEN, *[UNKNOWN] * 1000), deadline_s=5.0).send("/accounts/a")


def test_reads_are_never_older_than_what_was_seen(slept: list[float]) -> None:
    row = httpx.Response(200, json=ROW, headers={"Onefold-Position": "t/0@9,u/1@2", "ETag": '"3"', "Onefold-Lag": "0"})
    script = Script(ACCEPTED, row, row)
    ours = client(script)
    ours.send("/accounts/a")
    assert ours.read("/accounts/a", AccountView).body.balance_cents == 7
    ours.read("/accounts/a", AccountView, until="balance_cents:7", wait_s=2)
    assert script.asked[1].url.params["min_position"] == "t/0@7"
    assert script.asked[2].url.params["min_position"] == "t/0@9,u/1@2"
    assert script.asked[2].url.params["until"] == "balance_cents:7"
    assert ours.position == "t/0@9,u/1@2"


def test_positions_are_the_latest_seen_and_bounded() -> None:
    ours = client(Script())
    for number in range(1000):
        ours.note(f"{'a-long-name-of-a-service' * 4}.topic-{number}/0@{number}")
    ours.note("topic-999/0@5")
    ours.note("topic-999/0@7,topic-999/0@1000,topic-999/0@6")
    assert "topic-999/0@1000" in ours.position
    assert 1000 < len(ours.position) <= 2000


def test_a_workers_url_may_end_with_a_slash() -> None:
    script = Script(ACCEPTED)
    Client("http://a/", http=httpx.Client(transport=httpx.MockTransport(script))).send("/accounts/ann")
    assert script.asked[0].url.path == "/accounts/ann"


def test_a_token_is_requested_anew_for_each_request(slept: list[float]) -> None:
    script, numbers = Script(BUSY, ACCEPTED), count(1)
    transport = httpx.MockTransport(script)
    with Client("http://one", token=lambda: f"t{next(numbers)}", http=httpx.Client(transport=transport)) as ours:
        ours.send("/accounts/a")
    assert [request.headers["authorization"] for request in script.asked] == ["Bearer t1", "Bearer t2"]


async def test_the_async_client_writes_reads_waits_and_lists(http: httpx.AsyncClient, node: MemoryNode) -> None:
    async with AsyncClient("http://worker", http=http) as ours:
        for number in range(7):
            path = path_of("/accounts", f"a/{number}")
            await ours.send(path)
            assert (await ours.send(f"{path}/charges", Charge(amount_cents=number + 1))).sequence == 2
            read = await ours.read(path, AccountView)
            assert (read.body.account_id, read.body.balance_cents, read.met) == (f"a/{number}", number + 1, None)
            assert (await ours.read(path, AccountView, as_of=1)).body.balance_cents == 0
            past = [page async for page in ours.pages(f"{path}/events", PastEvent, limit=1)]
            assert [event.sequence for page in past for event in page.items] == [1, 2]
        unmet = await ours.read(path, AccountView, until="balance_cents:0", wait_s=0.01)
        assert unmet.met is False
        listed = [page async for page in ours.pages("/accounts", AccountView, order="-balance_cents", limit=3)]
        assert [item.balance_cents for page in listed for item in page.items] == [7, 6, 5, 4, 3, 2, 1]
        node.refuses = {node.partition(b"a/0")}
        lacking = [page async for page in ours.pages("/accounts", AccountView)]
        assert lacking[0].missing == [node.partition(b"a/0")]
        node.refuses = set()
        with pytest.raises(Refused) as refused:
            await ours.read("/accounts/nobody-at-all", AccountView)
        assert refused.value.code == "not_found"


async def test_a_client_sends_a_command_for_the_row_that_it_has_read(http: httpx.AsyncClient) -> None:
    async with AsyncClient("http://worker", http=http) as ours:
        opened = await ours.send("/accounts/ann", if_match=0)
        read = await ours.read("/accounts/ann", AccountView)
        await ours.send("/accounts/ann/charges", Charge(amount_cents=1), if_match=read.etag)
        with pytest.raises(Refused, match=r"^412 sequence.mismatch: ann is at sequence 2, and "):
            await ours.send("/accounts/ann/charges", Charge(amount_cents=1), if_match=opened.sequence)
