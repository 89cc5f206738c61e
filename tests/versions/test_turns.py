"""The next version of a service that decides, sends, waits and copies takes its turn beside the running one, and gives
it back, under load: nothing is decided, sent or copied twice, and nothing is lost.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from getpass import getuser
from itertools import count
from typing import Any

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.runtime.failpoints import STEPS, TURN_STEPS
from tests.versions.operator import Operator
from tests.versions.tills import tales_of, tills
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

KIND = tills, tales_of
TILLS = [f"till-{number}" for number in range(8)]
WAIT_S = 10


class Customers:
    """Ring at each till, one after the other, and read what they rang. think_s: how long they wait in between."""

    def __init__(self, workers: list[Worker], think_s: float = 0.0) -> None:
        self.workers = workers
        self._think_s = think_s
        self.rung: dict[str, int] = dict.fromkeys(TILLS, 0)
        self.wrong: list[str] = []
        self._ending = threading.Event()
        self._http = httpx.Client(timeout=2 * WAIT_S, trust_env=False)

    @property
    def rings(self) -> int:
        return sum(self.rung.values())

    def ring(self, till: str) -> None:
        """Once, whatever answers. Then all workers must tell of it."""
        cents, began = self.rung[till] + 1, time.monotonic()
        for turn in count():
            at = self.workers[(turn + cents) % len(self.workers)]
            try:
                answer = self._http.post(
                    f"{at.url}/tills/{till}/rings",
                    json={"cents": cents},
                    headers={"Idempotency-Key": f"{till}-{cents}", "Prefer": "wait=2"},
                )
            except httpx.TransportError:
                continue
            if answer.status_code == 201:
                break
            if answer.status_code not in (202, 503) or time.monotonic() - began > 60:
                self.wrong.append(f"{till} {cents} at {at.name}: {answer.status_code} {answer.text}")
                return
            self._ending.wait(0.02)
        self.rung[till] = cents
        if answer.json()["sequence"] != cents:
            self.wrong.append(f"{till} {cents}: {answer.text}")
        self._read(till, answer.headers["Onefold-Position"])

    def _read(self, till: str, position: str) -> None:
        rung = self.rung[till]
        for at in self.workers:
            for path, field, expected in (("tills", "cents", rung * (rung + 1) // 2), ("rings", "rings", rung)):
                query: dict[str, Any] = {"min_position": position, "wait": WAIT_S}
                try:
                    answer = self._http.get(f"{at.url}/{path}/{till}", params=query)
                except httpx.TransportError:
                    continue
                if answer.status_code != 503 and (answer.status_code != 200 or answer.json()[field] != expected):
                    self.wrong.append(f"{path} {till} {rung} at {at.name}: {answer.status_code} {answer.text}")

    @contextmanager
    def ringing(self) -> Iterator[None]:
        def ring_on(some: list[str]) -> None:
            while not self._ending.is_set():
                for till in some:
                    self.ring(till)
                    self._ending.wait(self._think_s)

        threads = [threading.Thread(target=ring_on, args=[TILLS[begin::2]]) for begin in range(2)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._ending.set()
            for each in threads:
                each.join()
            self._http.close()

    def go_on(self, more: int = len(TILLS)) -> None:
        """Returns after so many more rings."""
        least = self.rings + more
        eventually(lambda: self.rings, lambda now: now >= least)


def bodies(stack: Stack, topic: str) -> list[dict[str, Any]]:
    """Of all records, in the order of each partition."""
    return [_json(value) for _, _, value in read_all(Brokers(stack.bootstrap), topic)]


def _json(value: bytes | None) -> dict[str, Any]:
    return dict(json.loads(value or b"{}"))


def check(stack: Stack, name: str, customers: Customers) -> set[int]:
    """That each ring was decided, sent, sent later and copied once. Returns the versions that have decided."""
    assert not customers.wrong
    wanted = Counter((till, cents) for till, last in customers.rung.items() for cents in range(1, last + 1))
    events = bodies(stack, f"{name}.events.v1")
    sequences = defaultdict[str, list[int]](list)
    for each in events:
        sequences[each["aggregate_id"]].append(each["sequence"])
    assert {till: [*range(1, last + 1)] for till, last in customers.rung.items()} == dict(sequences)
    assert Counter((each["aggregate_id"], each["data"]["cents"]) for each in events) == wanted

    def told() -> dict[str, Counter[tuple[str, int]]]:
        found = defaultdict[str, Counter[tuple[str, int]]](Counter)
        for each in bodies(stack, tales_of(name).topics[0].name):
            found[each["data"]["how"]][each["aggregate_id"], each["data"]["cents"]] += 1
        return found

    found = eventually(told, lambda found: sum(found["later"].values()) >= wanted.total())
    assert found["at once"] == wanted
    assert found["later"] == wanted
    copies = bodies(stack, f"{name}.by-cents.v1")
    assert Counter((each["aggregate_id"], each["data"]["cents"]) for each in copies) == wanted
    return {each["data"]["version"] for each in events}


def stand_side_by_side(operator: Operator, worker: Callable[..., Worker], think_s: float = 0.0) -> Customers:
    """A worker of each version, and customers who rang once at each till of the first."""
    first = worker(1, "first")
    first.await_ready()
    customers = Customers([first], think_s)
    for till in TILLS:
        customers.ring(till)
    operator.declares(2)
    operator("deploy")
    second = worker(2, "second")
    second.await_ready()
    customers.workers.append(second)
    return customers


def test_the_next_version_decides_on_and_gives_back(
    name: str, stack: Stack, operator: Operator, worker: Callable[..., Worker]
) -> None:
    customers = stand_side_by_side(operator, worker, think_s=0.3)
    first, second = customers.workers
    with customers.ringing():
        # at once: the new worker is ready, and may not have said yet which partitions it owns
        assert "version 2 takes its turn in 4 partitions" in operator("switch", "--reason", "counts twice")
        customers.go_on()
        second.kill()
        second.start()
        customers.go_on()
        assert "done" in operator("rollback")
        customers.go_on()
    assert check(stack, name, customers) == {1, 2}
    done = [line.partition("  ")[2].partition("  ")[2] for line in operator("versions").splitlines() if " by " in line]
    user = getuser()
    assert done == [
        f"deploy of version 2 by {user}",
        f"switch of version 2 by {user}: counts twice",
        f"rollback of version 1 by {user}",
    ]
    compared = operator("compare")
    assert f"rings: {len(TILLS)} of {len(TILLS)} rows are equal" in compared
    assert "field     cents" not in compared
    assert f"field     rings differs in {len(TILLS)}" in compared
    assert first.running
    assert second.running


def killed_at(step: str, victim: Worker, operator: Operator, verb: str) -> None:
    """Types the command, and again if it is refused meanwhile; the victim dies at that step, and comes back."""
    victim.stop()
    victim.change(failpoint=f"{step}:kill:1")
    victim.start()
    done: list[bool] = []
    begun = threading.Thread(target=lambda: done.append(operator.has(verb)))
    begun.start()
    back_from_death(victim)
    begun.join()
    if done != [True]:
        eventually(lambda: operator.has(verb))


def back_from_death(victim: Worker) -> None:
    eventually(lambda: victim.running, lambda running: not running)
    victim.change(failpoint=None)
    victim.start()


@pytest.mark.long  # in short, test_the_next_version_decides_on_and_gives_back kills one
@pytest.mark.parametrize("killed", ["first", "second"])
@pytest.mark.parametrize("step", TURN_STEPS)
@pytest.mark.parametrize("verb", ["switch", "rollback"])
def test_a_worker_may_die_at_each_step_of_a_turn(
    verb: str, step: str, killed: str, name: str, stack: Stack, operator: Operator, worker: Callable[..., Worker]
) -> None:
    customers = stand_side_by_side(operator, worker)
    with customers.ringing():
        customers.go_on()
        if verb == "rollback":
            operator("switch")
            customers.go_on()
        killed_at(step, customers.workers[killed == "second"], operator, verb)
        customers.go_on(2 * len(TILLS))
    assert check(stack, name, customers) == {1, 2}


@pytest.mark.long  # in short, test_the_next_version_decides_on_and_gives_back kills one
@pytest.mark.parametrize("seed", range(20))
def test_workers_may_die_in_each_phase_of_a_change(
    seed: int, name: str, stack: Stack, operator: Operator, worker: Callable[..., Worker]
) -> None:
    chance = random.Random(seed)
    first = worker(1, "first")
    first.await_ready()
    customers = Customers([first])
    with customers.ringing():
        customers.go_on(chance.randrange(1, 5 * len(TILLS)))
        operator.declares(2)
        operator("deploy")
        second = worker(2, "second", failpoint=f"{chance.choice(STEPS)}:kill:{chance.randrange(1, 4)}")  # as it fills
        back_from_death(second)
        both = [first, second]
        customers.workers = both
        for verb in ("switch", "rollback", "switch"):
            killed_at(chance.choice(TURN_STEPS), chance.choice(both), operator, verb)
            customers.go_on(chance.randrange(1, 2 * len(TILLS)))
            (victim := chance.choice(both)).kill()
            victim.start()
            customers.go_on()
    assert check(stack, name, customers) == {1, 2}
    compared = operator("compare")
    assert f"rings: {len(TILLS)} of {len(TILLS)} rows are equal" in compared
    assert "field     cents" not in compared
