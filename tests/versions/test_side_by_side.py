"""The next version of a view is deployed beside the running one, compared, switched to, rolled back and retired, under
load: any worker's URL is right at any time, and a position that a write was answered with stays one.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from getpass import getuser
from itertools import count
from typing import Any

import httpx
import pytest
from confluent_kafka import Message, Producer

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.domain.envelope import encode
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.operations.versions import Step, Versions
from shared.runtime.positions import Place, format_positions
from shared.runtime.routes import Active
from shared.testing.scenario import happened
from tests.versions.operator import Operator
from tests.versions.tallies import PARTITIONS, Visited, tallies, visits_to
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

KIND = tallies, visits_to
VISITORS = [f"visitor-{number}" for number in range(12)]
ODD = "odd"  # has made a visit of no minutes
WAIT_S = 10


class Visits:
    """Writes visits, and knows how many there are."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = Producer(producer_config(bootstrap))
        self._topic = visits_to(name).topics[0].name
        self._made = Counter[str]()

    def write(self, visitor: str, minutes: int) -> tuple[int, str]:
        """How many the visitor has made with this one, and the position that includes it."""
        self._made[visitor] += 1
        delivered: list[Message] = []
        body = encode(happened(Visited(minutes=minutes), aggregate_id=visitor, sequence=self._made[visitor]))
        place = Place(self._topic, partition_of(visitor.encode(), PARTITIONS))
        self._producer.produce(
            place.topic, body, visitor, place.number, on_delivery=lambda _, message: delivered.append(message)
        )
        assert self._producer.flush(WAIT_S) == 0
        return self._made[visitor], format_positions({place: delivered[0].offset() or 0})


@pytest.fixture
def visits(name: str, operator: Operator, stack: Stack) -> Visits:
    return Visits(stack.bootstrap, name)


def read(worker: Worker, visitor: str, version: int | None = None, **query: Any) -> httpx.Response:
    headers = {} if version is None else {"Onefold-Version": str(version)}
    return httpx.get(
        f"{worker.url}/totals/{visitor}", params=query, headers=headers, timeout=WAIT_S + 5, trust_env=False
    )


def shown(worker: Worker, visitor: str, version: int | None = None) -> tuple[int, str | None]:
    """The count, and which version gave it."""
    answer = read(worker, visitor, version)
    return (answer.json()["visits"] if answer.status_code == 200 else -1, answer.headers.get("Onefold-Version"))


@contextmanager
def load(visits: Visits, *workers: Worker, strict: bool = True) -> Iterator[Callable[[], int]]:
    """Inside the block, visitors come, and each reads its own visit at each worker. Gives how many right answers there
    were. strict: each has to be one; else some may fail, but none may be wrong.
    """
    ending, wrong, right = threading.Event(), list[str](), list[str]()

    def come() -> None:
        for number in count():
            if ending.is_set():
                return
            made, position = visits.write(visitor := VISITORS[number % len(VISITORS)], 5)
            for worker in workers:
                try:
                    answer = read(worker, visitor, min_position=position, wait=WAIT_S)
                except httpx.TransportError as failure:
                    found, failed = repr(failure), True
                else:
                    found, failed = f"{answer.status_code} {answer.text}", answer.status_code == 503
                if failed and not strict:
                    continue
                expected = json.dumps({"visits": made}, separators=(",", ":"))
                (right if found == f"200 {expected}" else wrong).append(f"{worker.name} {made}: {found}")

    visitor = threading.Thread(target=come)
    visitor.start()
    try:
        yield lambda: len(right)
    finally:
        ending.set()
        visitor.join()
    assert not wrong


def go_on(reads: Callable[[], int], more: int = 30) -> None:
    """Returns after so many more reads."""
    least = reads() + more
    eventually(reads, lambda now: now >= least)


def followed(worker: Worker, visits: Visits) -> str:
    """The id of the first change that a stream of this worker sends of a visit that is made meanwhile."""
    with httpx.stream("GET", f"{worker.url}/changes/totals", timeout=WAIT_S, trust_env=False) as stream:
        lines = stream.iter_lines()
        next(lines)
        visits.write(VISITORS[0], 5)
        return next(line for line in lines if line.startswith("id: ") and "changelog" in line and "@" in line)


@pytest.mark.long  # in short, that of a service that decides, in test_turns.py
def test_the_next_version_of_a_view_takes_over_and_gives_back(
    name: str, stack: Stack, operator: Operator, visits: Visits, worker: Callable[[int, str], Worker]
) -> None:
    first = worker(1, "first")
    visits.write(ODD, 0)
    for visitor in VISITORS:
        visits.write(visitor, 5)
    first.await_ready()
    eventually(lambda: shown(first, ODD), lambda found: found == (1, "1"))
    assert "only version 1 is declared" in operator.refused("deploy")

    operator.declares(2)
    assert "has one version" in operator.refused("switch")
    assert "dry run" in operator("deploy", "--dry-run")
    assert not Brokers(stack.bootstrap).has(f"{name}-v2-totals-changelog")
    operator("deploy")
    assert f"{name}-v2 begins" not in operator("deploy")
    assert f"{name}-v2 has no workers" in operator.refused("switch")

    second, third = worker(2, "second"), worker(2, "third")
    for each in (second, third):
        each.await_ready()
    compared = operator("compare")
    assert f"totals: {len(VISITORS)} of {len(VISITORS) + 1} rows are equal" in compared
    assert f"row       {ODD} in partition {partition_of(ODD.encode(), PARTITIONS)}: visits 1 → 0" in compared
    assert [shown(each, ODD) for each in (first, second, third)] == [(1, "1")] * 3
    assert [shown(each, ODD, version=2) for each in (first, second, third)] == [(0, "2")] * 3

    with load(visits, first, second) as reads:
        go_on(reads)
        assert "of 13 rows are equal" in operator("compare")
        assert "dry run" in operator("switch", "--dry-run")
        operator("switch", "--reason", "counts right")
        go_on(reads)
        eventually(lambda: [shown(each, ODD) for each in (first, second)], lambda found: found == [(0, "2")] * 2)
        operator("rollback")
        go_on(reads)
        eventually(lambda: [shown(each, ODD) for each in (first, second)], lambda found: found == [(1, "1")] * 2)
        operator("switch")
        go_on(reads)
    assert f"{name}-v2-totals-changelog" in followed(first, visits)
    listed = httpx.get(f"{first.url}/totals", trust_env=False).json()
    assert {"visits": 0} in listed["items"]
    assert all(each["status"] == "fresh" for each in listed["partitions"])

    third.kill()
    assert "version 2 is active" in operator.refused("retire", "2", "--yes")
    assert f"in the group {name}; fix: stop" in operator.refused("retire", "1", "--yes")
    eventually(lambda: {shown(first, each)[1] for each in VISITORS}, lambda found: found == {"2"})
    first.stop()
    operator("retire", "1", "--yes", "--reason", "no way back")
    assert operator("retire", "1", "--yes").startswith("nothing to do")
    left = {each.name for each in stack.settings.data_dir.glob(f"{name}-*")}
    assert left == {f"{name}-v2-second", f"{name}-v2-third"}
    assert not Brokers(stack.bootstrap).has(f"{name}-totals-changelog")
    assert "no switch to take back" in operator.refused("rollback")
    told = operator("versions")
    assert told.count("  version ") == 1
    assert f"retire of version 1 by {getuser()}: no way back" in told
    eventually(lambda: shown(second, ODD), lambda found: found == (0, "2"))


@pytest.mark.long  # in short, a service that decides, in test_turns.py
@pytest.mark.parametrize("killed", ["first", "second"])
@pytest.mark.parametrize("verb", ["switch", "rollback"])
def test_a_worker_may_die_as_another_version_takes_over(
    verb: str, killed: str, operator: Operator, visits: Visits, worker: Callable[[int, str], Worker]
) -> None:
    for visitor in [*VISITORS, ODD]:
        visits.write(visitor, 0 if visitor == ODD else 5)
    workers = {"first": worker(1, "first"), "other": worker(1, "other")}
    workers["first"].await_ready()
    eventually(lambda: shown(workers["first"], ODD), lambda found: found == (1, "1"))
    operator.declares(2)
    operator("deploy")
    workers |= {"second": worker(2, "second"), "another": worker(2, "another")}
    for each in workers.values():
        each.await_ready()
    if verb == "rollback":
        eventually(lambda: operator.has("switch"))
    expected = (0, "2") if verb == "switch" else (1, "1")
    with load(visits, *workers.values(), strict=False) as reads:
        go_on(reads)
        workers[killed].kill()
        eventually(lambda: operator.has(verb))
        left = [each for name, each in workers.items() if name != killed]
        eventually(lambda: {shown(each, ODD) for each in left}, lambda found: found == {expected})
        go_on(reads)
        workers[killed].start()
        go_on(reads)
    eventually(lambda: {shown(each, ODD) for each in workers.values()}, lambda found: found == {expected})
    assert f"totals: {len(VISITORS)} of {len(VISITORS) + 1} rows are equal" in operator("compare")


def test_what_was_interrupted_goes_on(name: str, stack: Stack, operator: Operator, visits: Visits) -> None:
    brokers, topic = Brokers(stack.bootstrap), visits_to(name).topics[0].name
    before = tallies(1, name).topology
    visits.write(ODD, 5)
    brokers.commit(before.group, {topic: dict.fromkeys(range(PARTITIONS), 0)})
    versions = Versions(tallies(2, name), stack.settings)

    def interrupted(plan: Callable[[], Iterator[Step]]) -> None:
        while steps := list(plan()):
            if steps[0].says.startswith("topics of "):  # which is always looked at
                steps[0].do()
                steps.pop(0)
            if not steps:
                break
            steps[0].do()

    interrupted(versions.deploy)
    assert brokers.positions(versions.topology.group) == {topic: dict.fromkeys(range(PARTITIONS), 0)}
    assert versions.routes().active == Active(version=1)
    stores = [stack.settings.data_dir / f"{group}-first" for group in (before.group, versions.topology.group)]
    for each in stores:
        (each / "totals-0").mkdir(parents=True)
    interrupted(lambda: versions.retire(2))
    assert [each.exists() for each in stores] == [True, False]
    left = [each.name for each in versions.topology.all_topics() if brokers.has(each.name)]
    assert sorted(left) == [f"{name}.dead.v1", f"{name}.routes.v1"]
    assert brokers.positions(versions.topology.group) == {}
