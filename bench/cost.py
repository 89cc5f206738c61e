"""What looking costs: commands decided while nobody looks, beside five viewers of the page, beside five of the page
that one of the workers makes itself, beside a Prometheus that asks each worker every second, and with stories traced;
how late the page is; and how long a story takes.

A viewer is a connection that reads the page's stream to its end, as a browser does; what the browser then takes to draw
is not measured here. What a command costs is the CPU of workers and console for it: their rate depends on all that
shares the machine, the load and the broker among them.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from bench.accounts import PARTITIONS, accounts, fill, ids, owners
from bench.begin import Begin
from bench.lab import Lab
from bench.load import MEASURED_S, WARM_UP_S, charges, lines_answered
from bench.race import cpu_s
from bench.report import Report, Result
from bench.speed import Load
from shared.console.watch import EVERY_S
from shared.dev.console_process import ConsoleProcess
from shared.dev.stages import StageFailed
from shared.dev.worker import Worker
from shared.http.client import Client, path_of
from shared.runtime.clients import trusted

WORKERS = 2
VIEWERS = 5
EVENTS = 100
OLD = "before-all-others"
SCRAPED_EVERY_S = 1.0
TRACED = {"untraced": None, "traced_0": 0.0, "traced_1_percent": 0.01}
_WITHIN_S = 60.0
_TICK_S = 0.01

Picture = dict[str, Any]


class _Round(NamedTuple):
    """cpu_s: of workers and console, for 1,000 commands."""

    per_s: float
    cpu_s: float


def cost(lab: Lab, begin: Begin, load: Load) -> Report:
    report = Report()
    with accounts(lab, WORKERS) as workers, _page(lab, workers, report) as page:
        url = page.url
        first = _story(workers[0], _told(workers[0], OLD))[1]["steps"][0]
        _throughput(begin, workers, page, max(3, load.rounds), report)
        _lateness(begin, workers[0], url, report)
        _stories(begin, workers[0], "{topic}/{partition}/{offset}".format(**first), report)
        _take_over(begin, workers, url, report)
    _traced(lab, begin, max(3, load.rounds), report)
    return report


@contextmanager
def _page(lab: Lab, workers: Sequence[Worker], report: Report) -> Iterator[ConsoleProcess]:
    """Once it answers."""
    began = time.monotonic()
    urls = {"accounts": [each.url for each in workers]}
    environment = lab.settings.environment()
    process = ConsoleProcess(lab.root / "logs" / "console.log", environment, urls)
    try:
        _await(lambda: _answers(process.url), "the page does not answer")
        report.results.append(Result("page_up", {"s": time.monotonic() - began}))
        yield process
    finally:
        process.stop()


def _throughput(begin: Begin, workers: Sequence[Worker], page: ConsoleProcess, rounds: int, report: Report) -> None:
    """Rounds alternate, so that a machine that slows down slows all."""
    keys = _keys(workers)
    looks: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "viewers_0": nullcontext,
        f"viewers_{VIEWERS}": partial(_viewers, page.url, VIEWERS),
        f"ui_viewers_{VIEWERS}": partial(_viewers, f"{workers[0].url}/ui", VIEWERS),
        "scraped": partial(_scraped, workers),
    }
    processes = {each.name: each.pid for each in workers} | {"console": page.pid}
    decided: dict[str, list[_Round]] = {look: [] for look in looks}
    _decided(keys, WARM_UP_S)
    for number in range(1, rounds + 1):
        for look, looking in looks.items():
            with begin(f"{look} {number}/{rounds}") as now, looking():
                decided[look].append(_round(keys, processes.values()))
                now.done = _said(decided[look][-1])
    _compare(decided, report)
    for look, looking in looks.items():
        with begin(f"idle {look}") as now, looking():
            before = {name: cpu_s(pid) for name, pid in processes.items()}
            time.sleep(MEASURED_S)
            spent = {name: 100 * (cpu_s(pid) - before[name]) / MEASURED_S for name, pid in processes.items()}
            now.done = ", ".join(f"{name} {of_a_core:.1f} %" for name, of_a_core in spent.items())
        report.results.append(Result(f"idle_{look}", {f"{name}_percent": each for name, each in spent.items()}))


def _traced(lab: Lab, begin: Begin, rounds: int, report: Report) -> None:
    """Each with workers of its own, that take turns; the collector is this process."""
    decided: dict[str, list[_Round]] = {name: [] for name in TRACED}
    with _collector() as collector:
        for number in range(1, rounds + 1):
            for name, share in TRACED.items():
                settings: dict[str, Any] = {} if share is None else {"otlp": collector, "traces": share}
                with begin(f"{name} {number}/{rounds}") as now, accounts(lab, WORKERS, **settings) as workers:
                    keys = _keys(workers)
                    _decided(keys, WARM_UP_S)
                    decided[name].append(_round(keys, [each.pid for each in workers]))
                    now.done = _said(decided[name][-1])
    _compare(decided, report)


def _compare(decided: Mapping[str, Sequence[_Round]], report: Report) -> None:
    """With the first, round by round; lowest and highest are the noise. Both ratios are below 1 where it costs more."""
    first, *others = decided
    for name, found in decided.items():
        rates, costs = [each.per_s for each in found], [each.cpu_s for each in found]
        figures = {"decided_per_s": median(rates), "rounds": len(rates), "min": min(rates), "max": max(rates)}
        spent = {"cpu_s_per_1000": median(costs), "cpu_min": min(costs), "cpu_max": max(costs)}
        report.results.append(Result(f"decided_{name}", figures | spent))
    for name in others:
        pairs = list(zip(decided[name], decided[first], strict=True))
        report.ratios[f"decided_{name}_vs_{first}"] = round(median(one.per_s / off.per_s for one, off in pairs), 3)
        report.ratios[f"cpu_{name}_vs_{first}"] = round(median(off.cpu_s / one.cpu_s for one, off in pairs), 3)


def _said(found: _Round) -> str:
    return f"{found.per_s:,.0f} commands/s, {1000 * found.cpu_s:.1f} ms of CPU for 1,000"


def _keys(workers: Sequence[Worker]) -> dict[str, list[str]]:
    """Accounts that each worker owns, by its URL. They are opened."""
    owned = owners(list(workers))
    keys = {each.url: ids({p for p, owner in owned.items() if owner is each}, 200) for each in workers}
    for each in workers:
        fill(each, keys[each.url])
    return keys


@contextmanager
def _scraped(workers: Sequence[Worker]) -> Iterator[None]:
    """As by a Prometheus that has little patience."""
    over = Event()

    def scrape() -> None:
        with httpx.Client(trust_env=False) as client:
            while not over.wait(SCRAPED_EVERY_S):
                for each in workers:
                    client.get(f"{each.url}/metrics").raise_for_status()

    scraping = Thread(target=scrape, daemon=True)
    scraping.start()
    try:
        yield
    finally:
        over.set()
        scraping.join()


class _Taken(BaseHTTPRequestHandler):
    """A collector that keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def _collector() -> Iterator[str]:
    """Its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taken)
    serving = Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _round(keys: dict[str, list[str]], processes: Iterable[int]) -> _Round:
    processes = list(processes)
    before = cpu_s(*processes)
    decided, per_s = _decided(keys, MEASURED_S)
    return _Round(per_s, 1000 * (cpu_s(*processes) - before) / decided)


def _decided(keys: dict[str, list[str]], seconds: float) -> tuple[int, float]:
    """How many commands, and how many a second."""
    with ThreadPoolExecutor(len(keys)) as pool:
        sent = list(pool.map(partial(lines_answered, seconds), keys, map(charges, keys.values())))
    return sum(decided for decided, _, _ in sent), sum(decided / took_s for decided, _, took_s in sent)


def _lateness(begin: Begin, worker: Worker, url: str, report: Report) -> None:
    """From the answer to a command, with which its event is committed, to the frame that has the event.

    Each is sent at a random time between two frames: right after one, it would wait for all of the next.
    """
    late_ms: list[float] = []
    with begin("event to frame") as now, Client(worker.url) as client, _frames(url) as seen:
        for number in range(EVENTS):
            account = f"late-{number}"
            time.sleep(random.uniform(0, EVERY_S))
            client.send(path_of("/accounts", account))
            answered = time.monotonic()
            late_ms.append(1000 * max(0.0, seen.await_first(partial(_has_event, account)) - answered))
        late_ms.sort()
        p95 = late_ms[int(0.95 * len(late_ms))]
        now.done = f"p95 {p95:.0f} ms"
    figures = {"p50_ms": median(late_ms), "p95_ms": p95, "max_ms": late_ms[-1], "events": len(late_ms)}
    report.results.append(Result("event_to_frame", figures))


def _stories(begin: Begin, worker: Worker, old: str, report: Report) -> None:
    """Of commands that were just answered; and of one before all others, by its place and by its key, as which all that
    is newer is read.
    """
    with begin("story") as now:
        took_ms = sorted(_story(worker, _told(worker, f"story-{number}"))[0] for number in range(EVENTS))
        recent = {"p50_ms": median(took_ms), "p99_ms": took_ms[int(0.99 * len(took_ms))], "stories": len(took_ms)}
        now.done = f"p99 {recent['p99_ms']:.0f} ms"
    report.results.append(Result("story_recent", recent))
    for name, id_ in (("place", old), ("key", OLD)):
        took, story = _story(worker, id_)
        found = {"ms": took, "read": story.get("records_read", 0), "found": int("steps" in story)}
        report.results.append(Result(f"story_old_by_{name}", found))


def _told(worker: Worker, key: str) -> str:
    """The key, once its command is decided."""
    with Client(worker.url) as client:
        client.send(path_of("/accounts", key), key=key)
    return key


def _story(worker: Worker, id_: str) -> tuple[float, dict[str, Any]]:
    """Milliseconds, and the answer."""
    began = time.monotonic()
    url = f"{worker.url}/stories/{quote(id_, safe='')}"
    answer = httpx.get(url, timeout=_WITHIN_S, trust_env=False, verify=trusted())
    return 1000 * (time.monotonic() - began), answer.json()


def _take_over(begin: Begin, workers: Sequence[Worker], url: str, report: Report) -> None:
    """From when the survivor says that it owns everything to the frame that shows it."""
    lost, survivor = workers
    with begin("take-over to frame") as now, _frames(url) as seen:
        seen.await_first(lambda picture: _owners_in(picture) == {lost.url, survivor.url})
        lost.kill()
        _await(lambda: _owners_told(survivor) == {survivor.url}, "nobody takes over")
        happened = time.monotonic()
        late_ms = 1000 * max(0.0, seen.await_first(lambda picture: _owners_in(picture) == {survivor.url}) - happened)
        now.done = f"{late_ms:.0f} ms"
    report.results.append(Result("take_over_to_frame", {"ms": late_ms}))


def _has_event(account: str, picture: Picture) -> bool:
    return any(each["key"] == account for each in picture["newest"]["events"])


def _owners_in(picture: Picture) -> set[str | None]:
    (shown,) = [each for each in picture["services"] if each["declared"]["name"] == "accounts"]
    return {each["owner"] for each in shown["places"]}


def _owners_told(worker: Worker) -> set[str]:
    owned: dict[str, str] = httpx.get(f"{worker.url}/cluster", trust_env=False).json()["owners"]["accounts"]
    return set(owned.values()) if len(owned) == PARTITIONS else set()


class _Frames:
    """The pictures that one viewer is sent, each with the time at which it came."""

    def __init__(self) -> None:
        self.all: list[tuple[float, Picture]] = []
        self._read = 0

    def await_first(self, has: Callable[[Picture], bool]) -> float:
        """When the first picture came, of those not looked at before, that has it; it is looked at again."""
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            for number in range(self._read, len(self.all)):
                self._read = number
                if has(self.all[number][1]):
                    return self.all[number][0]
            time.sleep(_TICK_S)
        raise StageFailed("the page does not show what has happened", "see the console's log")


@contextmanager
def _frames(url: str) -> Iterator[_Frames]:
    frames, over, rest = _Frames(), Event(), b""

    def read(part: bytes) -> None:
        nonlocal rest
        *events, rest = (rest + part).split(b"\n\n")
        frames.all += [(time.monotonic(), json.loads(each[6:])) for each in events if each.startswith(b"data: ")]

    with _reading(url, read, over):
        yield frames


@contextmanager
def _viewers(url: str, count: int) -> Iterator[None]:
    """So many who read, and throw away what they are sent."""
    over = Event()
    with ExitStack() as all_of_them:
        for _ in range(count):
            all_of_them.enter_context(_reading(url, len, over))
        yield


@contextmanager
def _reading(url: str, note: Callable[[bytes], object], over: Event) -> Iterator[None]:
    """Reads the stream in a thread, and notes what comes, until the end. Something has come when this is entered."""
    begun = Event()

    def read() -> None:
        with httpx.stream("GET", f"{url}/stream", timeout=_WITHIN_S, trust_env=False) as stream:
            for part in stream.iter_raw():
                note(part)
                begun.set()
                if over.is_set():
                    return

    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        if not begun.wait(_WITHIN_S):
            raise StageFailed("the page sends no picture", "see the console's log")
        yield
    finally:
        over.set()
        thread.join()


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False).status_code == httpx.codes.OK
    return False


def _await(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise StageFailed(problem, "see the console's log")
        time.sleep(_TICK_S)
