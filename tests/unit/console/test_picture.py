"""Each figure of the page is one of the API, or a sum of them; nothing is looked at while nobody looks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from shared.console import watch
from shared.console.app import STATIC, create_console
from shared.console.feed import Feed
from shared.console.picture import Declared, Looks, Paces, places_in, sources_in
from shared.console.watch import Watcher
from shared.http.cluster import Cluster, Member
from shared.stories.tail import Newest

A, B = "http://a:8000", "http://b:8000"
DECLARED = Declared(name="accounts", group="accounts", version=1, partitions=2, reads=("t",), sends=())
VENDORED = {"preact-htm-3.1.1.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"}
SCRIPT_BYTES = 100_000
OF_THE_PAGE = {"Onefold-Console": "1"}


def table(partition: int, active: str | None, to_restore: int | None, lag: int) -> dict[str, object]:
    standby = {"url": B, "lag_records": lag, "lag_seconds": lag / 10}
    restored = None if to_restore is None else to_restore == 0
    return {
        "partition": partition,
        "active": active,
        "restored": restored,
        "to_restore": to_restore,
        "left_s": None,
        "standbys": [standby] if lag else [],
    }


def source(partition: int, position: int, lag: int) -> dict[str, object]:
    return {"partition": partition, "active": A, "position": position, "lag_records": lag, "lag_seconds": lag / 10}


def cluster(position: int = 5) -> Cluster:
    return Cluster.model_validate(
        {
            **dict.fromkeys(("handled", "commits", "aborts", "waiting"), 0),
            "replicas": [],
            "sources": [],
            "members": [],
            "service": "accounts",
            "instance": "1",
            "url": A,
            "ready": True,
            "idle": False,
            "owners": {},
            "tables": {
                "accounts": [table(0, A, 7, 3), table(1, None, None, 0)],
                "balances": [table(0, A, 0, 4), table(1, None, None, 0)],
            },
            "topics": {"t": [source(0, position, 2), source(1, 1, 1)], "u": [source(0, 0, 5)]},
        }
    )


def test_a_partition_has_the_sums_of_its_tables_and_topics() -> None:
    first, second = places_in(cluster(), DECLARED)
    assert (first.owner, first.restored, first.to_restore) == (A, False, 7)
    assert (first.lag_records, first.lag_seconds) == (7, 0.5)
    assert [(each.url, each.lag_records, each.lag_seconds) for each in first.standbys] == [(B, 7, 0.4)]
    assert (second.owner, second.restored, second.to_restore, second.lag_records) == (None, None, None, 1)


def test_what_waits_is_not_known_while_an_owner_is_silent() -> None:
    unread = cluster().model_copy(update={"topics": {}})
    assert [each.lag_records for each in places_in(unread, DECLARED)] == [None, None]


def test_nothing_waits_where_an_owner_answers_and_has_nothing_to_read() -> None:
    idle = cluster().model_copy(update={"topics": {}, "tables": {"balances": cluster().tables["balances"]}})
    assert places_in(idle, DECLARED)[0].lag_records == 0


def test_a_pace_needs_two_counts_and_survives_a_restart() -> None:
    paces = Paces()
    paces.note(10.0, {"a": 100, "b": 5})
    assert paces.of(["a", "b"]) is None
    paces.note(12.0, {"a": 120, "b": 0, "c": 9})
    assert paces.of(["a", "b", "c"]) == 10.0
    paces.note(15.0, {"a": 120})
    paces.note(20.0, {"a": 130})
    assert paces.of(["a"]) == 2.0  # what was longer ago does not count


def test_topics_advance_as_their_readers_do() -> None:
    paces = Paces()
    for at, position in ((0.0, 5), (2.0, 25)):
        paces.note(at, {"t/0": position, "t/1": 1})
    found = {each.topic: each for each in sources_in(cluster(), paces)}
    assert (found["t"].lag_records, found["t"].lag_seconds, found["t"].offsets_per_s) == (3, 0.2, 10.0)
    assert found["u"].offsets_per_s is None


def test_what_is_handled_is_the_sum_of_what_members_tell() -> None:
    looks, members = Looks(), [{"url": A, "reachable": True, "handled": 5, "parked": 1}, {"url": B, "reachable": False}]
    for at, handled in ((0.0, 5), (2.0, 25)):
        members[0]["handled"] = handled
        told = cluster().model_copy(update={"members": [Member.model_validate(each) for each in members]})
        shown = looks.shown(DECLARED, A, told, (), at)
    assert (shown.handled_per_s, shown.url) == (10.0, A)
    assert shown.parked is None  # nobody owns the second partition


def test_one_frame_serves_all_viewers_and_without_any_nothing_is_looked_at() -> None:
    looks = 0

    async def look() -> bytes:
        nonlocal looks
        looks += 1
        return b"%d" % looks

    async def watch() -> None:
        feed = Feed(look, every_s=0.0)
        async with aclosing(feed.frames()) as one, aclosing(feed.frames()) as other:
            assert {*await asyncio.gather(anext(one), anext(other))} == {b"1"}
        seen = looks
        for _ in range(5):
            await asyncio.sleep(0)
        assert (looks, feed.viewers) == (seen, 0)
        async with aclosing(feed.frames()) as again:
            assert int(await anext(again)) == seen + 1

    asyncio.run(watch())


def test_a_look_that_fails_while_nobody_waits_is_followed_by_the_next_one() -> None:
    looks = 0

    async def look() -> bytes:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ValueError("no picture")
        return b"%d" % looks

    async def watch() -> None:
        feed = Feed(look, every_s=0.0)
        async with aclosing(feed.frames()) as one:
            await anext(one)
            for _ in range(20):
                await asyncio.sleep(0)
            assert looks > 2

    asyncio.run(watch())


def answer(path: str, host: str = "127.0.0.1") -> httpx.Response:
    return asyncio.run(asked(Watcher([], dict, dict, Newest), "GET", path, host))


def test_the_messages_of_all_services_are_one_document() -> None:
    async def ask() -> Any:
        transport = httpx.ASGITransport(
            create_console(Watcher([], dict, dict, Newest), asyncapi=lambda: {"channels": {}})
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return (await http.get("/asyncapi.json")).json()

    assert asyncio.run(ask()) == {"channels": {}}


async def asked(watcher: Watcher, method: str, path: str, host: str = "127.0.0.1", **sent: Any) -> httpx.Response:
    transport = httpx.ASGITransport(create_console(watcher))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        return await http.request(method, path, **sent)


async def _answer_of_a_worker(request: web.Request) -> web.Response:
    if request.path == "/docs":
        return web.Response(text="<script>", content_type="text/html")
    told = {"target": request.raw_path, "token": request.headers.get("Authorization"), "body": await request.text()}
    return web.json_response(told, status=404)


@asynccontextmanager
async def beside_a_worker(operator: str | None) -> AsyncIterator[Watcher]:
    worker = web.Application()
    worker.router.add_route("*", "/{any:.*}", _answer_of_a_worker)
    async with TestServer(worker) as server:
        urls = {"accounts": ["http://127.0.0.1:1", str(server.make_url("")).rstrip("/")]}  # nobody is at the first
        watcher = Watcher([DECLARED], lambda: urls, dict, Newest, "a token", operator=operator)
        await watcher.look()
        yield watcher
        await watcher.close()


def test_what_a_viewer_asks_goes_to_a_worker_as_it_came_and_only_json_comes_back() -> None:
    async def ask() -> None:
        async with beside_a_worker(None) as watcher:
            passed = await asked(watcher, "GET", "/ask/accounts/accounts/a%2Fb?as_of=2&x=%C3%A9", headers=OF_THE_PAGE)
            assert (passed.status_code, passed.json()["target"]) == (404, "/accounts/a%2Fb?as_of=2&x=%C3%A9")
            assert passed.json()["token"] == "Bearer a token"
            page = await asked(watcher, "GET", "/ask/accounts/docs", headers=OF_THE_PAGE)
            assert (page.status_code, "<script>" in page.text) == (502, False)
            assert (await asked(watcher, "GET", "/ask/nobody/accounts", headers=OF_THE_PAGE)).status_code == 502
            assert (await asked(watcher, "POST", "/ask/accounts/accounts/ann", headers=OF_THE_PAGE)).status_code == 405

    asyncio.run(ask())


def test_no_other_page_has_the_console_ask_a_worker() -> None:
    """It could not read the answer, but take up the operator's turns."""

    async def ask() -> None:
        async with beside_a_worker(None) as watcher:
            assert (await asked(watcher, "GET", "/ask/accounts/stories/x")).status_code == 422

    asyncio.run(ask())


def test_what_a_viewer_has_given_up_no_worker_goes_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next question is one too many: all viewers are one client."""
    monkeypatch.setattr(watch, "_PASSED_S", 600.0)

    async def ask() -> None:
        begun, gone = asyncio.Event(), asyncio.Event()

        async def slowly(_: web.Request) -> web.Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()
            raise AssertionError("it waits for ever")

        worker = web.Application()
        worker.router.add_route("GET", "/{any:.*}", slowly)
        async with TestServer(worker, handler_cancellation=True) as server:
            url = str(server.make_url("")).rstrip("/")
            watcher = Watcher([DECLARED], lambda: {"accounts": [url]}, dict, Newest)
            watcher._known["accounts"].urls = [url]
            console = create_console(watcher)

            async def receive() -> dict[str, Any]:
                if heard:
                    await begun.wait()
                    return {"type": "http.disconnect"}
                heard.append(True)
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(_: object) -> None: ...

            heard: list[bool] = []
            path = "/ask/accounts/stories/x"
            scope = {
                "type": "http",
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
                "root_path": "",
                "client": None,
                "server": None,
                "headers": [(b"host", b"127.0.0.1"), (b"onefold-console", b"1")],
            }
            await asyncio.wait_for(console(scope, receive, send), 10)
            await asyncio.wait_for(gone.wait(), 30)
            await watcher.close()

    asyncio.run(ask())


def test_dead_letters_are_mended_in_the_operators_name_or_not_at_all() -> None:
    wish = {"service": "accounts", "id": "accounts/0/a b", "action": "discard", "reason": "wrong", "offset": 3}

    async def ask() -> None:
        async with beside_a_worker("olga") as watcher:
            passed = await asked(watcher, "POST", "/dead-letters", json=wish, headers={"Onefold-Console": "1"})
            assert passed.json()["target"] == "/dead-letters/accounts%2F0%2Fa%20b/discard"
            assert json.loads(passed.json()["body"]) == {"reason": "wrong", "offset": 3, "by": "olga"}
            assert (await asked(watcher, "POST", "/dead-letters", json=wish)).status_code == 422
        async with beside_a_worker(None) as watcher:
            refused = await asked(watcher, "POST", "/dead-letters", json=wish, headers={"Onefold-Console": "1"})
            assert refused.status_code == 404

    asyncio.run(ask())


@pytest.mark.parametrize("path", ["/", "/static/console.js", "/static/style.css", "/nothing"])
def test_a_browser_loads_nothing_from_another_host(path: str) -> None:
    policy = answer(path).headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy


def test_a_page_that_calls_this_host_by_another_name_gets_nothing() -> None:
    assert answer("/", "evil.example").status_code == 400


def test_scripts_are_few_and_name_no_other_host() -> None:
    scripts = sorted(STATIC.rglob("*.js"))
    assert sum(each.stat().st_size for each in scripts) <= SCRIPT_BYTES
    urls = {url for each in STATIC.rglob("*.[chjs]*") for url in re.findall(r"https?://[\w.]+", each.read_text())}
    assert urls <= {"http://www.w3.org"}  # namespaces, which nobody loads


def test_what_others_wrote_is_as_they_wrote_it() -> None:
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in (STATIC / "vendor").glob("*.js")}
    assert found == VENDORED
