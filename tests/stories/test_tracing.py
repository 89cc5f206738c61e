"""What a collector is sent while a story happens: the spans of its records, and below them what workers did."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import free_port
from shared.runtime import tracing
from shared.runtime.settings import Settings
from shared.runtime.traces import Span, as_otlp, bound_of, is_below, link_to, span_id, trace_id
from shared.runtime.tracing import Tracing
from shared.stories.search import find_story
from shared.stories.story import Story
from shared.stories.traces import spans_of
from tests.api.client import Answer, Client
from tests.conftest import WORKER_SETTINGS, variant_of_accounts
from tests.stories.traced_accounts import TRACED
from tests.waiting import eventually

Json = Mapping[str, Any]

SHARE = 0.5
KEYS = [f"story-{number}" for number in range(50)]
TAKEN, OTHER, FAILING, TAKEN_TOO = (
    *[key for key in KEYS if is_below(key, bound_of(SHARE))][:1],
    *[key for key in KEYS if not is_below(key, bound_of(SHARE))][:1],
    *[key for key in KEYS if is_below(key, bound_of(SHARE))][1:3],
)
NAME, SECRET = "Zoë Ångström", "planted-secret"
CALLERS = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
RECORDS = 8  # a command, its event and the event's copy; a command now, a timer and its command; their events


class Collector:
    """On loopback. bodies: what it has taken. status: what it answers."""

    def __init__(self, port: int) -> None:
        self.bodies: list[str] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if collector.status == 200:
                    collector.bodies.append(body)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, key: str) -> list[Json]:
        """Those of the story with this correlation id."""
        found = [each for body in self.bodies for each in _spans(json.loads(body))]
        return [span for span in found if span["traceId"] == trace_id(key)]


@contextmanager
def collecting(port: int) -> Iterator[Collector]:
    collector = Collector(port)
    try:
        yield collector
    finally:
        collector.stop()


def _spans(otlp: Json) -> list[Json]:
    return [span for resource in otlp["resourceSpans"] for scope in resource["scopeSpans"] for span in scope["spans"]]


@pytest.mark.broker
def test_what_workers_tell_of_a_story_is_one_tree_with_what_the_story_tells(tmp_path: Path) -> None:
    variant = variant_of_accounts("tests.stories.traced_accounts")
    port = free_port()
    with collecting(port) as collector:
        more = {"otlp": collector.url, "traces": SHARE, "access_log": "on"}
        settings = WORKER_SETTINGS.model_copy(update=more)
        with Stack(tmp_path, {"accounts": 2}, settings=settings, topologies=[TRACED], command=variant) as stack:
            clients = [Client(url) for url in stack.urls("accounts")]
            for key in (OTHER, TAKEN, TAKEN):
                assert opened(clients[0], key).status == 201
            assert (
                clients[0].post(f"/accounts/{TAKEN}/charges", {"amount_cents": 13}, Idempotency_Key=FAILING).status
                == 500
            )
            assert clients[0].ask("GET", f"/accounts?token={SECRET}", None, {}).status == 422
            story = eventually(partial(story_of, stack.bootstrap), lambda found: len(found.steps) == RECORDS + 1)
            told = [_as_json(each) for each in spans_of(story)]
            mine = eventually(partial(collector.spans, TAKEN), partial(has_all, told))
            eventually(partial(collector.spans, FAILING), lambda found: any(each["status"] for each in found))
            sent = [httpx.get(f"{each}/metrics", trust_env=False).text for each in stack.urls("accounts")]
            collector.stop()
            assert [opened(each, TAKEN_TOO).status for each in clients] == [201, 201]
        logs = "".join(each.log.read_text() for each in stack.workers)

    repeat = next(each for each in told if each["spanId"] not in {span["spanId"] for span in mine})
    assert repeat["parentSpanId"] == span_id(story.steps[0].id)  # only the story tells that a record is a repeat
    assert by_id([each for each in mine if each["kind"] == 4]) == by_id(each for each in told if each != repeat)
    assert len({each["spanId"] for each in mine}) == len(mine)

    (root,) = [each for each in mine if "parentSpanId" not in each]
    named = {each["spanId"]: each["name"] for each in mine}
    assert all(each["parentSpanId"] in named for each in mine if each is not root)
    done = sorted((named[each["parentSpanId"]], each["name"]) for each in mine if each["kind"] != 4)
    assert set(done) == {
        ("account.open", "POST /accounts/{account_id}"),
        ("account.open", "commit account.open"),
        ("account.open", "decide accounts"),
        ("account.opened", "commit account.opened"),
        ("account.opened", "project opened"),
        ("account.opened", "react policy.fee"),
        ("account.opened", "rekey rekey.accounts.events.v1"),
        ("account.charge", "commit account.charge"),
        ("account.charge", "decide accounts"),
        ("account.charge", "delay delay.accounts.timers.v1"),
        ("account.charged", "commit account.charged"),
        ("account.charged", "project opened"),
        ("account.charged", "react policy.fee"),
        ("account.charged", "rekey rekey.accounts.events.v1"),
    }
    http = [each for each in mine if each["kind"] == 2]
    assert [each["links"] for each in http] == [[{"traceId": CALLERS[0], "spanId": CALLERS[1]}]] * 2
    (failed,) = [each for each in collector.spans(FAILING) if each["name"] == "decide accounts"]
    assert failed["status"] == {"code": 2, "message": "command.failed"}
    assert not collector.spans(OTHER)
    assert any('onefold_spans_total{fate="sent"}' in each for each in sent)

    lines = [json.loads(line) for line in logs.splitlines() if line.startswith("{")]
    parked = [line for line in lines if line["event"] == "a record is parked"]
    told_of = {"key": TAKEN, "correlation_id": FAILING, "topic": "accounts.commands.v1", "code": "command.failed"}
    assert [told_of.items() <= each.items() for each in parked] == [True]
    requests = [line for line in lines if line["event"] == "request"]
    of_failing = [each for each in requests if each.get("correlation_id") == FAILING]
    assert {(each["method"], each["path"], each["status"]) for each in of_failing} == {
        ("POST", f"/accounts/{TAKEN}/charges", 500)
    }
    assert not {each["path"] for each in requests} & {"/readyz", "/metrics"}
    for planted in (NAME, json.dumps(NAME)[1:-1], SECRET):
        assert planted not in logs
        assert not any(planted in body for body in collector.bodies)


def opened(client: Client, key: str) -> Answer:
    headers = {"Idempotency_Key": key, "Authorization": f"Bearer {SECRET}", "Traceparent": f"00-{'-'.join(CALLERS)}-01"}
    return client.post(f"/accounts/{key}", {"holder": NAME}, **headers)


def story_of(bootstrap: str) -> Story:
    return find_story(bootstrap, [TRACED], TAKEN, now_ms=time.time_ns() // 1_000_000)


def has_all(told: Sequence[Json], spans: Sequence[Json]) -> bool:
    """Each record but that of the repeat, and that each was handled but the copy, which nobody reads."""
    commits = [each for each in spans if each["name"].startswith("commit ")]
    records = [each for each in spans if each["kind"] == 4]
    return len(records) == len(commits) == len(told) - 1


def by_id(spans: Iterator[Json] | Sequence[Json]) -> list[Json]:
    return sorted(spans, key=lambda each: each["spanId"])


def _as_json(span: Span) -> Json:
    (found,) = _spans(as_otlp([span]))
    return found


def span(number: int) -> Span:
    return Span("s", trace_id(TAKEN), span_id(str(number)), None, "n", 1, 0, 0, {})


def test_nobody_waits_for_a_collector_that_is_away_and_what_finds_no_room_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "EVERY_S", 0.05)
    monkeypatch.setattr(tracing, "QUEUED", 10)
    port = free_port()
    traces = Tracing(f"http://127.0.0.1:{port}/v1/traces", 1.0, "1")
    traces.tell([span(number) for number in range(13)])
    assert fates(traces) == {"sent": 0, "lost": 3}
    traces.start()
    with collecting(port) as collector:
        collector.status = 503
        traces.tell([span(13)])
        collector.status = 200
        eventually(lambda: fates(traces)["sent"] >= 10)
        collector.status = 400
        traces.tell([span(14)])
        eventually(lambda: fates(traces)["lost"] >= 4)
        traces.stop()
    assert len({each["spanId"] for each in collector.spans(TAKEN)}) == fates(traces)["sent"]


def fates(traces: Tracing) -> dict[str, float]:
    (metric,) = traces.spans.collect()
    return {each.labels["fate"]: each.value for each in metric.samples if each.name == "onefold_spans_total"}


def test_a_share_of_stories_is_traced_the_same_by_all() -> None:
    ids = [str(number) for number in range(10_000)]
    taken = {each for each in ids if is_below(each, bound_of(0.01))}
    assert 50 < len(taken) < 200
    assert taken < {each for each in ids if is_below(each, bound_of(0.1))}
    assert not any(is_below(each, bound_of(0)) for each in ids)
    assert all(is_below(each, bound_of(1)) for each in ids)


@pytest.mark.parametrize("settings", [Settings(traces=1.0), Settings(otlp="http://127.0.0.1:4318/v1/traces", traces=0)])
def test_where_no_story_is_traced_a_worker_has_no_part_that_traces(settings: Settings) -> None:
    assert tracing.tracing_of(settings) is None


@pytest.mark.parametrize(
    "text", [None, "", "00-1-2-01", f"ff-{'-'.join(CALLERS)}-01", f"00-{'0' * 32}-{CALLERS[1]}-01"]
)
def test_what_is_no_traceparent_is_no_link(text: str | None) -> None:
    assert link_to(text) is None
    assert link_to(f"00-{'-'.join(CALLERS)}-00") == CALLERS
