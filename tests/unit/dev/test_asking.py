"""Verbs ask workers with the operator's token, skip dead workers, and say what to do about a refusal."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from pipelines import answers as spark
from shared.dev import asking, dead_letters, here, up
from shared.dev.asking import Silent, ask
from shared.dev.issuer import DevIssuer
from shared.dev.processes import identify
from shared.dev.stages import StageFailed
from shared.dev.worker import is_ready
from shared.http.client import AsyncClient, Client
from shared.runtime.settings import load_settings
from tests.unit.http.services import issuer_settings, own_api

NOTHING: dict[str, Any] = {"items": [], "cursor": None}


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DevIssuer:
    """A worker of accounts that asks for tokens of this issuer."""
    monkeypatch.delenv("ONEFOLD_TOKEN", raising=False)
    transport = httpx.ASGITransport(own_api(issuer_settings(tmp_path, "accounts")))

    async def answer(request: httpx.Request) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport) as client:
            found = await client.request(request.method, request.url, content=request.content, headers=request.headers)
        return httpx.Response(found.status_code, content=found.content)

    asked = httpx.MockTransport(lambda request: asyncio.run(answer(request)))
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=asked))
    return DevIssuer(tmp_path)


def test_an_operators_token_is_sent_and_may_have_several_audiences(
    guarded: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    audiences = ["orders", "accounts"]
    monkeypatch.setenv("ONEFOLD_TOKEN", guarded.token("", ["operations:read"], "joe", aud=audiences))
    load_settings()  # so that the variable is known
    assert ask("http://worker/cluster")["service"] == "accounts"
    assert ask("http://worker/dead-letters?limit=1")["items"] == []


def test_a_missing_or_insufficient_token_is_reported_with_the_scope_it_needs(
    guarded: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageFailed, match="a bearer token is needed") as refused:
        ask("http://worker/cluster")
    assert "set ONEFOLD_TOKEN to a bearer token with operations:read" in refused.value.fix
    monkeypatch.setenv("ONEFOLD_TOKEN", guarded.token("accounts", ["operations:read"], "joe"))
    with pytest.raises(StageFailed, match="needs the scope operations:write") as refused:
        ask("http://worker/dead-letters/x/retry", "POST")
    assert "ONEFOLD_TOKEN" in refused.value.fix


Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Answer]:
    """What each host answers, for a test to fill in; other hosts refuse connections."""
    found: dict[str, Answer] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host not in found:
            raise httpx.ConnectError("refused", request=request)
        return found[request.url.host](request)

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    return found


@pytest.mark.parametrize(("status", "fix"), [(404, "name an id"), (409, "correct what"), (422, "correct what")])
def test_a_refusal_is_reported_with_a_fix_that_fits_it(answers: dict[str, Answer], status: int, fix: str) -> None:
    answers["worker"] = lambda _: httpx.Response(status, json={"detail": "fix `evolve` and retry"})
    with pytest.raises(StageFailed, match="says: fix `evolve` and retry") as refused:
        ask("http://worker/dead-letters/chapters%2F0%2Fa/discard", "POST")
    assert refused.value.fix.startswith(fix)


def test_a_worker_that_answers_429_is_asked_again_when_it_says(
    answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    many = httpx.Response(429, headers={"Retry-After": "2"}, json={"detail": "too many requests"})
    script = iter([many, many, httpx.Response(200, json={"items": []}), *[many] * 9])
    answers["worker"] = lambda _: next(script)
    assert ask("http://worker/dead-letters") == {"items": []}
    assert slept == [2.0, 2.0]
    monkeypatch.setattr(asking, "_PATIENCE_S", 1.0)
    with pytest.raises(StageFailed, match="says: too many requests") as refused:
        ask("http://worker/dead-letters")
    assert "ONEFOLD_RATE_LIMIT" in refused.value.fix


@pytest.mark.parametrize("act", [dead_letters.retry, partial(dead_letters.discard, offset=7, reason="a test")])
def test_nothing_is_asked_of_what_is_not_parked(answers: dict[str, Answer], act: Callable[..., None]) -> None:
    answers["worker"] = lambda request: httpx.Response(
        404 if request.method == "GET" else 202, json={"detail": "nothing"}
    )
    with pytest.raises(StageFailed, match="says: nothing"):
        act("orders", "orders/3/mistyped", url="http://worker")


def test_a_discard_does_not_claim_that_the_record_is_dropped(
    answers: dict[str, Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    """By then another record may be first, or its source may be read again."""
    answers["worker"] = lambda _: httpx.Response(202, json={})
    dead_letters.discard("inventory", "levels/0/a", 7, "a test", url="http://worker")
    assert "`dead-letters show inventory levels/0/a --url http://worker` shows what is left" in capsys.readouterr().out


def test_the_command_to_type_next_names_the_id_and_the_worker(
    answers: dict[str, Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["worker"] = lambda _: httpx.Response(202, json={})
    dead_letters.retry("orders", "orders/3/o 1", url="http://worker")
    assert "`dead-letters show orders 'orders/3/o 1' --url http://worker`" in capsys.readouterr().out


def test_all_that_is_parked_can_be_retried_at_once(
    answers: dict[str, Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug can park every key of a service."""
    parked, asked = [{"id": "orders/3/o 1"}, {"id": "levels/0/a"}], list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"items": parked, "cursor": None})
        asked.append(request.url.raw_path.decode())
        return httpx.Response(202, json={})

    answers["worker"] = answer
    dead_letters.retry("orders", url="http://worker")
    assert asked == ["/dead-letters/orders%2F3%2Fo%201/retry", "/dead-letters/levels%2F0%2Fa/retry"]
    assert capsys.readouterr().out.startswith("asked; `dead-letters list orders --url http://worker` shows")


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", "[]", "{}"])
def test_an_error_that_no_worker_wrote_is_reported_by_its_status(answers: dict[str, Answer], body: str) -> None:
    answers["proxy"] = lambda _: httpx.Response(502, text=body)
    with pytest.raises(StageFailed, match="http://proxy/cluster says: 502 Bad Gateway"):
        ask("http://proxy/cluster")


def test_an_answer_that_is_no_workers_is_reported(answers: dict[str, Answer]) -> None:
    answers["page"] = lambda _: httpx.Response(200, text="<html>It works!</html>")
    with pytest.raises(StageFailed, match="http://page/cluster says: 200 OK, which is not a worker's answer"):
        ask("http://page/cluster")


@pytest.mark.parametrize(
    ("url", "variable", "value"),
    [
        ("host:8100", "NO_PROXY", ""),
        ("http://host:81OO", "NO_PROXY", ""),
        ("http://host:8100", "ALL_PROXY", "socks5://127.0.0.1:1080"),
        ("http://host:8100", "HTTP_PROXY", "telnet://proxy"),
        ("http://host:8100", "ONEFOLD_TOKEN", "tokén"),
    ],
)
def test_a_question_that_cannot_be_asked_is_no_silent_worker(
    url: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` leaves out silent workers: others report them."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(StageFailed, match=f"{url}/cluster cannot be asked: ") as refused:
        ask(f"{url}/cluster")
    assert not isinstance(refused.value, Silent)
    assert "correct the URL" in refused.value.fix


def test_the_line_end_of_a_token_is_no_part_of_it(answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_TOKEN", "abc\n")
    answers["worker"] = lambda request: httpx.Response(200, json={"sent": request.headers["Authorization"]})
    assert ask("http://worker/cluster") == {"sent": "Bearer abc"}


def test_a_url_may_end_with_a_slash(answers: dict[str, Answer], capsys: pytest.CaptureFixture[str]) -> None:
    answers["worker"] = lambda request: httpx.Response(
        200 if request.url.path == "/dead-letters" else 404, json=NOTHING
    )
    dead_letters.show_all("inventory", url="http://worker/")
    assert here.named_workers(["accounts=http://worker/"], ["accounts"]) == {"accounts": ["http://worker"]}
    assert capsys.readouterr().out == "0 parked\n"


def pretend_up_runs(monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str], *hosts: str) -> None:
    """An `up` that runs inventory on these hosts."""
    services: Any = {"inventory": [{"url": f"http://{host}", "pid": 1} for host in hosts]}
    record = up.Record(identify(os.getpid()), (), settings, services)
    monkeypatch.setattr(up, "_read", lambda _: record)


def test_a_dead_worker_is_passed_over(
    answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_up_runs(monkeypatch, {"ONEFOLD_BOOTSTRAP": "b:1"}, "dead", "alive")
    answers["alive"] = lambda _: httpx.Response(200, json=NOTHING)
    dead_letters.show_all("inventory")
    assert capsys.readouterr().out == "0 parked\n"


def test_a_stopped_service_can_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_up_runs(monkeypatch, {"ONEFOLD_BOOTSTRAP": "b:1"})
    with pytest.raises(StageFailed, match="no worker of inventory runs"):
        dead_letters.show_all("inventory")


def test_nothing_can_be_asked_while_up_starts_its_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_up_runs(monkeypatch, {})
    with pytest.raises(StageFailed, match="`up` is starting its brokers"):
        dead_letters.show_all("inventory")


class Anything(BaseModel):
    """Accepts any JSON object."""


class Worker(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"paths":{"/rows/{key}":{"get":{}}}}')

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(
    "asks",
    [
        is_ready,
        ask,
        lambda url: spark.ask(url, "rows", [b"a"]),
        lambda url: Client(url).read("/rows/a", Anything),
        lambda url: asyncio.run(AsyncClient(url).read("/rows/a", Anything)),
    ],
)
def test_a_worker_of_this_machine_is_asked_past_a_proxy(
    asks: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Worker) as worker:
        Thread(target=worker.serve_forever, args=(0.01,)).start()
        try:
            assert asks(f"http://127.0.0.1:{worker.server_port}")
        finally:
            worker.shutdown()
