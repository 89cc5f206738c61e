"""The whole shop while workers of all five services are killed and frozen: policies, timers, copies and views, too."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.accounts import topology as accounts
from services.inventory import topology as inventory
from services.orders import topology as orders
from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.runtime.failpoints import STEPS
from tests.conftest import WORKER_SETTINGS
from tests.faults.harness import Log, Violated, Void, get, is_frozen, observe
from tests.faults.load import Steady, command, new_names
from tests.faults.log import Follower, with_open_transactions
from tests.faults.run import SEEN, is_short, listed
from tests.faults.verdict import changed_since, lost
from tests.shop import books
from tests.shop.books import Told
from tests.shop.ledger import wrong_moves
from tests.shop.market import said_by_topic
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

SERVICES = {topology.service: 2 for topology in books.TOPOLOGIES}
ORDERS_DEADLINE_S = 5.0
PLACED_PER_S = 20
LEAST_PLACED = 400
SKUS, PIECES = 40, 50
CUSTOMERS, CREDIT_CENTS, PRICE_CENTS = 300, 600_00, 150_00  # a courier is called for half of the orders
SETTLED_S = 120.0
ASKED = 300  # rows in the short tier, each of both workers; in the long one all are asked for

Row = tuple[str, str, dict[str, Any]]
"""Service, path, and the fields that it has to show."""


class Orders(Steady):
    """Customers place orders, mostly for what is there and what they can pay, and cancel a few of them."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed, PLACED_PER_S)
        self.names: list[str] = []
        self._skus, self._customers = new_names("sku", SKUS), new_names("customer", CUSTOMERS)
        (self._run,) = new_names("order", 1)

    def run(self) -> None:
        for sku in self._skus:
            self._tell(inventory.COMMANDS.name, sku, "stock.receive", {"quantity": PIECES})
        for customer in self._customers:
            self._tell(accounts.COMMANDS.name, customer, "account.open", {"credit_limit_cents": CREDIT_CENTS})
        super().run()

    def send_next(self) -> None:
        name = f"{self._run}-{len(self.names)}"
        self.names.append(name)
        lines = [
            {"sku": sku, "quantity": self.random.randint(1, 2), "amount_cents": self.random.randint(0, PRICE_CENTS)}
            for sku in self.random.sample(self._skus, self.random.randint(1, 3))
        ]
        order = {"customer_id": self.random.choice(self._customers), "lines": lines}
        self._tell(orders.COMMANDS.name, name, "order.place", order | {"placed_at": "2026-01-01T00:00:00Z"})
        if self.random.random() < 0.05:
            self._tell(orders.COMMANDS.name, self.random.choice(self.names), "order.cancel", {})

    def _tell(self, topic: str, name: str, kind: str, data: dict[str, Any]) -> None:
        self.send_command(topic, name.encode(), command(name, f"{kind} {name}", kind, data))


@pytest.fixture
def shop(root: Path, seed: int) -> Iterator[Stack]:
    """One broker, two workers of each service."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ORDERS_DEADLINE_S", str(ORDERS_DEADLINE_S))
        with Stack(root / f"shop-{seed}", SERVICES, settings=WORKER_SETTINGS) as stack:
            yield stack


@pytest.mark.long  # in short, the workers of one service, in test_workers; without a kill, tests/demo
def test_the_shop_is_killed_and_frozen(shop: Stack, seed: int) -> None:
    """In each service a worker is killed at some step of a flush; then one is frozen, then all of one service."""
    print(f"FAULTS_SEED={seed}; logs: {shop.logs}")  # noqa: T201
    chance, seen = random.Random(seed), Counter(scenarios=1)
    load = Orders(shop.bootstrap, seed)
    follower = Follower(shop.bootstrap, books.PLACES)
    for thread in (follower, load):
        thread.start()
    try:
        victims = [chance.choice(shop.workers_of(service)) for service in SERVICES]
        _kill_in_a_flush(victims, chance)
        seen["kills"] += len(victims)
        frozen, other = chance.sample(shop.workers_of(chance.choice(list(SERVICES))), 2)
        _freeze([frozen], lambda: _owns_everything(other), f"{other.name} owns everything")
        overdue = _overdue(follower)
        asked = shop.workers_of(chance.choice(["inventory", "accounts"]))
        _freeze(asked, lambda: _overdue(follower) > overdue, "an answer is overdue")
        seen["freezes"] += 3
        observe(lambda: len(load.names) >= LEAST_PLACED, f"{LEAST_PLACED} orders")
        load.end()
        for worker in shop.workers:
            worker.await_ready()
        seen.update(_judged(shop, load, follower, seed))
    finally:
        load.end()
        follower.end()
    SEEN.update(seen)
    print(f"{listed(seen)}: exact")  # noqa: T201


def _kill_in_a_flush(victims: Sequence[Worker], chance: random.Random) -> None:
    armed = [(victim, Log(victim), chance.choice(STEPS)) for victim in victims]
    for victim, _, step in armed:
        victim.kill()
        victim.change(failpoint=f"{step}:kill:{chance.randint(3, 40)}")
        victim.spawn()
    for victim, log, step in armed:
        observe(partial(_is_killed, victim), f"{victim.name} was killed")
        log.must_tell("failpoint reached", step)
        victim.change(failpoint=None)
        victim.spawn()
    for victim in victims:
        victim.await_ready()


def _is_killed(worker: Worker) -> bool:
    return worker.exit_code == -signal.SIGKILL


def _freeze(victims: Sequence[Worker], until: Callable[[], bool], what: str) -> None:
    for victim in victims:
        victim.pause()
    for victim in victims:
        observe(partial(is_frozen, victim), f"{victim.name} is frozen")
    observe(until, what)
    for victim in victims:
        victim.resume()


def _owns_everything(worker: Worker) -> bool:
    owners: dict[str, dict[str, str]] = get(worker, "/cluster")[1]["owners"]
    return all(url == worker.url for of_table in owners.values() for url in of_table.values())


def _overdue(follower: Follower) -> int:
    """How often an order has asked again."""
    events = [reads for (topic, _), reads in follower.records.items() if topic == orders.EVENTS.name]
    return sum(b'_overdue"' in (read.value or b"") for reads in events for read in list(reads))


def _judged(shop: Stack, load: Orders, follower: Follower, seed: int) -> Counter[str]:
    records = books.settled(shop.bootstrap, SETTLED_S)
    eventually(lambda: with_open_transactions(shop.bootstrap, books.PLACES), lambda left: not left, SETTLED_S)
    log = said_by_topic(records)
    books.check_ends(log)
    books.check_limits(log)
    for topology, processor in books.TABLES:
        books.check_table(log, topology, processor)
    assert books.dead_letters(log) == []
    observe(lambda: follower.has_seen(records), "the follower at the end of the log")
    rows, codes = _rows(log)
    violations = [*load.failures, *lost(load.acknowledged, records), *changed_since(follower.records, records)]
    violations += [*wrong_moves(follower.arrived), *_wrong_rows(shop, _asked(rows, seed))]
    if violations:
        raise Violated(violations, seed, shop.logs)
    if missing := {"inventory.out_of_stock", "account.credit_exceeded", "cancelled", "confirmed"} - codes.keys():
        raise Void(f"no order ended as {missing}")
    return Counter(commands=len(load.acknowledged), orders=len(load.names))


def _rows(log: Told) -> tuple[list[Row], Counter[str]]:
    """What the services have to show, and how often orders ended how."""
    placed = {
        phase: books.states(log, orders.TOPOLOGY, orders.ORDERS, phase)
        for phase in ("confirmed", "rejected", "cancelled")
    }
    rows: list[Row] = [("orders", f"/orders/{name}", {"phase": phase}) for phase in placed for name in placed[phase]]
    rows += [
        ("inventory", f"/items/{sku}", {"physical": item["physical"], "reserved": 0})
        for sku, item in books.states(log, inventory.TOPOLOGY, inventory.ITEMS, "listed").items()
    ]
    rows += [
        ("accounts", f"/accounts/{name}", {"balance_cents": account["balance_cents"]})
        for name, account in books.states(log, accounts.TOPOLOGY, accounts.ACCOUNTS, "open").items()
    ]
    rows += [("pickups", f"/pickups/orders:{name}", {"phase": "pending"}) for name in books.large_orders(log)]
    codes = Counter(order.get("code", phase) for phase, found in placed.items() for order in found.values())
    return rows, codes


def _asked(rows: list[Row], seed: int) -> list[Row]:
    return random.Random(seed).sample(rows, ASKED) if is_short(seed) else rows


def _wrong_rows(shop: Stack, rows: list[Row]) -> Iterator[str]:
    """Asks every worker for these rows of its service."""
    for worker in shop.workers:
        own = [(path, fields) for service, path, fields in rows if service == worker.service]
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda row, of=worker: get(of, row[0]), own)
            for (path, fields), (status, body) in zip(own, found, strict=True):
                if status != 200 or not fields.items() <= body.items():
                    yield f"{worker.name} answers {path} with {status} {body} instead of {fields}"
