"""The page's picture of workers that answer late, in part, or not at all: here they are a server on loopback."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from shared.console.picture import Declared
from shared.console.terminal import Terminal
from shared.console.watch import Watcher
from shared.dev.console import show_in_terminal
from shared.dev.doctor import Diagnosis
from shared.dev.stages import StageFailed
from shared.http import peers
from shared.http.dead_letters import DeadLetter
from shared.stories.tail import Newest
from tests.waiting import eventually

DECLARED = Declared(name="accounts", group="accounts", version=1, partitions=2, reads=("t",), sends=())
EMPTY: Any = {"owners": {}, "topics": {}, "replicas": [], "sources": []}
LETTER = DeadLetter(
    id="a/0/x", processor="a", topic="t", partition=0, offset=7, code="c", reason="r", attempts=1, behind=0
)


class Worker:
    """One that answers as a test wants it. orphans: partitions that nobody owns."""

    def __init__(self) -> None:
        self.url = ""
        self.orphans = 0
        self.letters: list[DeadLetter] = []
        self.late_s = 0.0

    async def cluster(self, _: web.Request) -> web.Response:
        await asyncio.sleep(self.late_s)
        members = [{"url": self.url, "reachable": True, "handled": 0, "parked": len(self.letters)}]
        owned: dict[str, object] = {"active": self.url, "restored": True, "to_restore": 0, "standbys": []}
        orphan: dict[str, object] = {"active": None, "restored": None, "to_restore": None, "standbys": []}
        table = [{"partition": n} | (orphan if n < self.orphans else owned) for n in range(DECLARED.partitions)]
        counts = dict.fromkeys(("handled", "commits", "aborts", "waiting"), 0)
        own = {"service": "accounts", "instance": "1", "url": self.url, "ready": True, "idle": False}
        return web.json_response({**counts, **EMPTY, **own, "members": members, "tables": {"accounts": table}})

    async def dead_letters(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [each.model_dump() for each in self.letters]})


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[Watcher]:
    app = web.Application()
    app.router.add_get("/cluster", worker.cluster)
    app.router.add_get("/dead-letters", worker.dead_letters)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        worker.url = site.name
        watcher = Watcher([DECLARED], lambda: {"accounts": [worker.url]}, dict, Newest)
        yield watcher
        await watcher.close()
    finally:
        await runner.cleanup()


def seen(worker: Worker) -> dict[str, Any]:
    """What the page gets of the service."""

    async def look() -> bytes:
        async with serving(worker) as watcher:
            return await watcher.look()

    shown: dict[str, Any] = json.loads(asyncio.run(look()))["services"][0]
    return shown


@pytest.mark.parametrize("id_", ["a/0/x'; touch PWNED; '", "a/0/$(id) `id` \\", "a/0/two words", "-x"])
def test_a_command_to_copy_has_an_id_as_one_word(id_: str) -> None:
    """A client, or a stranger who writes to the topic, chooses a key, which is in the id."""
    worker = Worker()
    worker.letters = [LETTER.model_copy(update={"id": id_})]
    (letter,) = seen(worker)["letters"]
    words = ["python3", "dev.py", "dead-letters", "show", "accounts", f"--url={worker.url}", "--", id_]
    assert shlex.split(letter["show"]) == words


def test_a_service_with_a_frozen_worker_is_shown() -> None:
    """Each worker that is asked waits for the frozen one, before it says that it can't be reached."""
    worker = Worker()
    worker.late_s = peers.ANSWER_S
    assert seen(worker)["problem"] is None


def test_what_is_parked_is_what_members_tell() -> None:
    """Also behind a port forward, which leads to one worker, while the members name themselves to each other."""
    worker = Worker()
    worker.letters = [LETTER]
    shown = seen(worker)
    assert (shown["parked"], [each["id"] for each in shown["letters"]]) == (1, [LETTER.id])


def test_what_is_parked_is_not_known_while_a_partition_is_missing() -> None:
    worker = Worker()
    worker.orphans = 1
    assert seen(worker)["parked"] is None


def test_a_doctor_that_fails_says_why_and_is_not_asked_again_at_once() -> None:
    asked = 0

    def diagnose() -> Mapping[str, Any]:
        nonlocal asked
        asked += 1
        raise ValueError("no such broker")

    watcher = Watcher([], dict, diagnose, Newest)

    def told() -> Any:
        return json.loads(asyncio.run(watcher.look()))["doctor"]

    eventually(told)
    assert (told()["problem"], asked) == ("ValueError: no such broker", 1)


def test_findings_do_not_wait_for_the_look_for_versions() -> None:
    """Brokers that have lost a coordinator are asked for a minute; just then one needs the findings."""
    silent = threading.Event()

    def versions() -> Mapping[str, Any]:
        silent.wait()
        raise ValueError("no such group")

    watcher = Watcher([DECLARED], dict, lambda: {"findings": ["it burns"]}, Newest, versions=versions)

    def told() -> Any:
        return json.loads(asyncio.run(watcher.look()))

    eventually(lambda: (told()["doctor"] or {}).get("findings"), lambda found: found == ["it burns"])
    assert told()["versions"] == {}
    silent.set()
    eventually(lambda: told()["versions"], lambda found: found == {"accounts": "ValueError: no such group"})
    assert told()["doctor"]["findings"] == ["it burns"]


def test_the_end_does_not_wait_for_the_doctor() -> None:
    """Who presses Ctrl-C while brokers are silent does not wait until it has asked each."""
    imports = "import asyncio, threading; from shared.console.watch import Newest, Watcher"
    program = f"{imports}; asyncio.run(Watcher([], dict, threading.Event().wait, Newest).look())"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_watch_leaves_no_connection_behind_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp says "Unclosed client session" of one that nobody closed, to the operator who pressed `q`."""

    class Quits(Terminal):
        async def run_async(self, **_: Any) -> None:
            await self._feed._look()

        def run(self, **_: Any) -> None:
            asyncio.run(self.run_async())

    monkeypatch.setattr("shared.console.terminal.Terminal", Quits)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    workers = {"accounts": ["http://127.0.0.1:1"]}
    watcher = Watcher([DECLARED], lambda: workers, dict, Newest)
    monkeypatch.setattr("shared.dev.console._watcher", lambda *_: watcher)
    show_in_terminal([], dict, lambda: Diagnosis((), ()), "")
    assert watcher._session.closed


def test_watch_names_status_where_nothing_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image has textual."""
    monkeypatch.setitem(sys.modules, "shared.console.terminal", None)
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda found=is_terminal: found)
        with pytest.raises(StageFailed, match="cli status`, prints"):
            show_in_terminal([], dict, lambda: Diagnosis((), ()), "")
