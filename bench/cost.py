"""What looking costs: commands decided while nobody looks, beside five viewers of the page, and beside five of the page
that one of the workers makes itself; and how late the page is.

A viewer is a connection that reads the page's stream to its end, as a browser does; what the browser then takes to draw
is not measured here.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from statistics import median
from threading import Event, Thread
from typing import Any

import httpx

from bench.accounts import PARTITIONS, accounts, fill, ids, owners
from bench.begin import Begin
from bench.lab import Lab
from bench.load import MEASURED_S, WARM_UP_S, charges, lines_answered
from bench.report import Report, Result
from bench.speed import Load
from shared.console.watch import EVERY_S
from shared.dev.console_process import ConsoleProcess
from shared.dev.stages import StageFailed
from shared.dev.worker import Worker
from shared.http.client import Client, path_of

WORKERS = 2
VIEWERS = 5
EVENTS = 100
_WITHIN_S = 60.0
_TICK_S = 0.01

Picture = dict[str, Any]


def cost(lab: Lab, begin: Begin, load: Load) -> Report:
    report = Report()
    with accounts(lab, WORKERS) as workers, _page(lab, workers) as url:
        _throughput(begin, workers, url, max(3, load.rounds), report)
        _lateness(begin, workers[0], url, report)
        _take_over(begin, workers, url, report)
    return report


@contextmanager
def _page(lab: Lab, workers: Sequence[Worker]) -> Iterator[str]:
    """Its URL, once it answers."""
    urls = {"accounts": [each.url for each in workers]}
    environment = lab.settings.environment()
    process = ConsoleProcess(lab.root / "logs" / "console.log", environment, urls)
    try:
        _await(lambda: _answers(process.url), "the page does not answer")
        yield process.url
    finally:
        process.stop()


def _throughput(begin: Begin, workers: Sequence[Worker], url: str, rounds: int, report: Report) -> None:
    """Rounds alternate, so that a machine that slows down slows both."""
    owned = owners(list(workers))
    keys = {each.url: ids({p for p, owner in owned.items() if owner is each}, 200) for each in workers}
    for each in workers:
        fill(each, keys[each.url])
    looks = {"viewers_0": (url, 0), f"viewers_{VIEWERS}": (url, VIEWERS)}
    looks[f"ui_viewers_{VIEWERS}"] = f"{workers[0].url}/ui", VIEWERS
    decided: dict[str, list[float]] = {look: [] for look in looks}
    _decided_per_s(keys, WARM_UP_S)
    for number in range(1, rounds + 1):
        for look, (at, viewers) in looks.items():
            with begin(f"{look} {number}/{rounds}") as now, _viewers(at, viewers):
                decided[look].append(_decided_per_s(keys, MEASURED_S))
                now.done = f"{decided[look][-1]:,.0f} commands/s"
    unseen, *others = looks
    for look, rates in decided.items():
        report.results.append(Result(f"decided_{look}", {"decided_per_s": median(rates), "rounds": rounds}))
    for look in others:
        pairs = zip(decided[look], decided[unseen], strict=True)
        report.ratios[f"decided_{look}_vs_0"] = round(median(seen / alone for seen, alone in pairs), 3)


def _decided_per_s(keys: dict[str, list[str]], seconds: float) -> float:
    with ThreadPoolExecutor(len(keys)) as pool:
        sent = list(pool.map(partial(lines_answered, seconds), keys, map(charges, keys.values())))
    return sum(decided / took_s for decided, _, took_s in sent)


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
    frames, over = _Frames(), Event()

    def read(line: str) -> None:
        frames.all.append((time.monotonic(), json.loads(line)))

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
def _reading(url: str, note: Callable[[str], object], over: Event) -> Iterator[None]:
    """Reads the stream in a thread, and notes the data of each event, from the first one on until the end."""
    begun = Event()

    def read() -> None:
        with httpx.stream("GET", f"{url}/stream", timeout=_WITHIN_S, trust_env=False) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    note(line.removeprefix("data: "))
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
