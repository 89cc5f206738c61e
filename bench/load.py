"""The real service under load, one worker and three, beside a bare FastAPI endpoint in the same run.

The load is wrk's: it takes little of the machine that it shares with what it measures, keeps its connections, and a
few lines of Lua give each request a key of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType

from bench.accounts import PARTITIONS, accounts, fill, ids, owners
from bench.begin import Begin
from bench.lab import Lab
from bench.race import cpu_s
from bench.report import Figure, Report, Result
from shared.dev.stages import StageFailed
from shared.dev.worker import Worker

WORKERS = 3
KEYS_A_WORKER = 200
CONNECTIONS = 24
LINES = 2_000  # a request of commands, a line each
SENDERS = 6
COLD_S = 20
WARM_UP_S = 2
MEASURED_S = 6
RATIOS = (
    ("get_owner_1w", "bare_get"),
    ("get_hop_3w", "get_owner_3w"),
    ("get_owner_3w", "get_owner_1w"),
    ("post_3w", "post_1w"),
)
GOAL = 10_000  # commands a second of requests with many, decided by one worker
MISSING = "only lines are sent: wrk is not installed (Debian and Ubuntu: apt-get install wrk; macOS: brew install wrk)"

_SCRIPT = """
local paths, body = { %s }, %s
local headers = body and { ["Content-Type"] = "application/json" } or {}
local number = 0

function request()
  number = number + 1
  return wrk.format(body and "POST" or "GET", paths[number %% #paths + 1], headers, body)
end

function done(summary, latency)
  local failed = summary.errors
  io.write(string.format('{"requests":%%d,"seconds":%%f,"p50_ms":%%f,"p99_ms":%%f,"failed":%%d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    failed.status + failed.connect + failed.read + failed.write + failed.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Work:
    """The requests that one worker gets, over and over."""

    url: str
    paths: Sequence[str]
    body: str | None = None


def load(lab: Lab, begin: Begin, _: object) -> Report:
    has_wrk = shutil.which("wrk") is not None
    report = Report(notes=[] if has_wrk else [MISSING])
    if has_wrk:
        _bare(lab, begin, report)
    for count in (1, WORKERS):
        with accounts(lab, count) as workers:
            if has_wrk and count == 1:
                keys = ids(set(range(PARTITIONS)), KEYS_A_WORKER)
                fill(workers[0], keys)
                warm_up(lab.root, workers[0].url, keys)
            _asked(lab, begin, workers, report, has_wrk)
    for one, other in RATIOS if has_wrk else ():
        report.ratios[f"{one}_vs_{other}"] = round(_rate(report, one) / _rate(report, other), 3)
    report.ratios["post_lines_1w_vs_goal"] = round(_rate(report, "post_lines_1w", "decided_per_s") / GOAL, 3)
    return report


def warm_up(root: Path, url: str, keys: Sequence[str]) -> None:
    """For as long as it takes until what is compiled while it runs has been."""
    wrk(root, Work(url, _paths(keys, "/charges"), '{"amount_cents":1}'), CONNECTIONS, COLD_S)


def _rate(report: Report, name: str, figure: str = "requests_per_s") -> float:
    rate = report.result(name).figures[figure]
    assert isinstance(rate, float)
    return rate


def _bare(lab: Lab, begin: Begin, report: Report) -> None:
    body = '{"account_id":"customer-1","phase":"open","balance_cents":0,"held_cents":0,"sequence":1}'
    bare = lab.spawn("bare", ["/usr/bin/env", f"BENCH_BODY={body}", sys.executable, "-m", "bench.sides.bare"])
    bare.await_ready()
    _measure(lab, begin, report, "bare_get", [Work(bare.url, [f"/sales/{number}" for number in range(KEYS_A_WORKER)])])
    bare.kill()


def _asked(lab: Lab, begin: Begin, workers: Sequence[Worker], report: Report, has_wrk: bool) -> None:
    """Each worker for its own keys, for those of the next one, for a list, and for decisions, also of many at once."""
    suffix = f"_{len(workers)}w"
    owned = owners(list(workers))
    keys = {
        worker.url: ids({partition for partition, owner in owned.items() if owner is worker}, KEYS_A_WORKER)
        for worker in workers
    }
    for worker in workers:
        fill(worker, keys[worker.url])
    after = {worker.url: workers[number - 1].url for number, worker in enumerate(workers)}
    works = {
        "get_owner": [Work(url, _paths(mine)) for url, mine in keys.items()],
        "list_50": [Work(url, ["/accounts?limit=50"]) for url in keys],
        "post": [Work(url, _paths(mine, "/charges"), '{"amount_cents":1}') for url, mine in keys.items()],
    }
    if len(workers) > 1:
        works["get_hop"] = [Work(after[url], _paths(mine)) for url, mine in keys.items()]
    pids = {"workers": [worker.pid for worker in workers], "broker": lab.kafka.pids}
    for name, work in works.items() if has_wrk else ():
        _measure(lab, begin, report, name + suffix, work, pids)
    _many(begin, keys, report, f"post_lines{suffix}")


def _many(begin: Begin, keys: Mapping[str, Sequence[str]], report: Report, name: str) -> None:
    """Commands a line each, for each worker those of its own keys; counted by what each line is answered."""
    urls = [*keys] * (SENDERS // len(keys))
    bodies = [charges(keys[url]) for url in urls]
    with begin(name) as now, ThreadPoolExecutor(SENDERS) as pool:
        for seconds in (WARM_UP_S, MEASURED_S):
            sent = list(pool.map(partial(lines_answered, seconds), urls, bodies))
        figures: dict[str, Figure] = {
            "decided_per_s": round(sum(decided / took_s for decided, _, took_s in sent), 1),
            "failed": sum(failed for _, failed, _ in sent),
            "lines_a_request": LINES,
            "connections": len(urls),
        }
        now.done = f"{figures['decided_per_s']:,} commands/s"
    report.results.append(Result(name, figures))


def charges(keys: Sequence[str]) -> bytes:
    charge = '{"type":"account.charge","id":"%s","body":{"amount_cents":1}}'
    return "\n".join(charge % keys[number % len(keys)] for number in range(LINES)).encode()


def lines_answered(seconds: float, url: str, body: bytes) -> tuple[int, int, float]:
    """How many lines were decided, how many were not, and the seconds that this took."""
    decided = sent = 0
    begun = time.monotonic()
    with closing(HTTPConnection(url.removeprefix("http://"))) as connection:
        while time.monotonic() < begun + seconds:
            connection.request("POST", "/accounts/commands", body, {"Content-Type": "application/x-ndjson"})
            decided += connection.getresponse().read().count(b'{"status":201,')
            sent += LINES
    return decided, sent - decided, time.monotonic() - begun


def _paths(keys: Sequence[str], rest: str = "") -> list[str]:
    return [f"/accounts/{key}{rest}" for key in keys]


def _measure(
    lab: Lab,
    begin: Begin,
    report: Report,
    name: str,
    works: Sequence[Work],
    pids: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> None:
    """All works at once, sharing the connections. pids: of processes whose CPU is told."""
    with begin(name) as now:
        _together(lab.root, works, WARM_UP_S)
        before, began = {of: cpu_s(*some) for of, some in pids.items()}, time.monotonic()
        runs = _together(lab.root, works, MEASURED_S)
        cores = {of: (cpu_s(*some) - before[of]) / (time.monotonic() - began) for of, some in pids.items()}
        figures: dict[str, Figure] = {
            "requests_per_s": round(sum(run["requests"] / run["seconds"] for run in runs), 1),
            "p50_ms": round(max(run["p50_ms"] for run in runs), 2),
            "p99_ms": round(max(run["p99_ms"] for run in runs), 2),
            "failed": int(sum(run["failed"] for run in runs)),
            "connections": CONNECTIONS,
            **{f"{of}_cores": round(count, 2) for of, count in cores.items()},
        }
        now.done = f"{figures['requests_per_s']:,} requests/s, p99 {figures['p99_ms']} ms"
    report.results.append(Result(name, figures))


def _together(root: Path, works: Sequence[Work], seconds: int) -> list[Mapping[str, float]]:
    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(lambda work: wrk(root, work, CONNECTIONS // len(works), seconds), works))


def wrk(root: Path, work: Work, connections: int, seconds: int) -> Mapping[str, float]:
    """What its Lua script prints at the end. failed: answers that are errors, too. Raises StageFailed."""
    script = root / f"wrk-{work.url.rsplit(':', 1)[1]}.lua"
    script.write_text(_SCRIPT % (", ".join(map(json.dumps, work.paths)), json.dumps(work.body) if work.body else "nil"))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(script), work.url]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise StageFailed(run.stdout + run.stderr, "see what wrk says")
    found: Mapping[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found
