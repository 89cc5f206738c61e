"""What the shop's topics and tables have to hold, worked out by replaying every topic from its first record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.accounts import topology as accounts
from services.accounts.service import SERVICE as ACCOUNTS
from services.inventory import topology as inventory
from services.inventory.service import SERVICE as INVENTORY
from services.orders import topology as orders
from services.orders.policies import BY_COURIER_CENTS
from services.orders.service import SERVICE as ORDERS
from services.pickups.service import SERVICE as PICKUPS
from services.sales import topology as sales
from services.sales.service import SERVICE as SALES
from shared.engine.processors import Processor
from shared.engine.wiring import processors_of
from shared.runtime.positions import Place
from shared.testing.conversation import MemoryRecord, replayed
from shared.topology.topics import Table, Topology
from tests.faults.log import Records, read_all
from tests.shop.market import said_by_topic
from tests.waiting import eventually

PROCESSORS: list[tuple[Topology, Processor]] = [
    (service.topology, processor)
    for service in (ACCOUNTS, INVENTORY, ORDERS, PICKUPS, SALES)
    for processor in processors_of(service)
]
TOPOLOGIES = (accounts.TOPOLOGY, inventory.TOPOLOGY, orders.TOPOLOGY, PICKUPS.topology, sales.TOPOLOGY)
TABLES = [(topology, processor) for topology, processor in PROCESSORS if processor.table]
ENDS = {"order.confirmed", "order.rejected", "order.cancelled"}

PLACES = {
    Place(topic.name, partition): 0
    for topology in TOPOLOGIES
    for topic in topology.all_topics()
    for partition in range(topology.partitions)
}
"""Where each partition of every topic begins."""

Told = Mapping[str, Sequence[MemoryRecord]]
"""Every committed record by topic, partition after partition."""

Written = Counter[tuple[str, bytes]]
"""How often each record is in each topic."""


def settled(bootstrap: str, deadline_s: float = 90.0) -> Records:
    """Every record of every topic, once they and the last rows are what a replay would write; else fails with the
    difference, or with the tables that differ.
    """
    found: Records = {}

    def left() -> tuple[Written, Written] | list[str]:
        found.update(read_all(bootstrap, PLACES))
        log = said_by_topic(found)
        left = difference(log)
        return left if any(left) else _wrong_tables(log)

    eventually(left, lambda left: not any(left), deadline_s)
    return found


def _wrong_tables(log: Told) -> list[str]:
    """A timer that is not due for anything changes only its command's row: no other topic tells that it is written."""
    compared = [(processor.name, *_rows(log, topology, processor)) for topology, processor in TABLES]
    return [name for name, expected, rows in compared if rows != expected]


def difference(log: Told) -> tuple[Written, Written]:
    """Records that a replay writes and the log lacks; records of the log that neither a replay nor a client wrote."""
    expected, found = Counter(_written_again(log)), Counter(_written(log))
    return expected - found, found - expected


def _written_again(log: Told) -> Iterator[tuple[str, bytes]]:
    for _, processor in PROCESSORS:
        _, records = replayed(processor, log[processor.source.name])
        yield from ((record.topic, record.value or b"") for record in records)


def _written(log: Told) -> Iterator[tuple[str, bytes]]:
    for topology in TOPOLOGIES:
        for topic in topology.topics:
            yield from ((topic.name, said.value) for said in log[topic.name] if not _from_client(said))


def _from_client(said: MemoryRecord) -> bool:
    body = json.loads(said.value)
    return "command_id" in body and body.get("causation_id") is None


def dead_letters(log: Told) -> list[MemoryRecord]:
    return [letter for topology in TOPOLOGIES for letter in log[topology.dead_letters.name]]


def check_ends(log: Told) -> None:
    """Every order ended once; stock, money and pickups agree with that, and nothing is reserved or held any more."""
    told = _messages(log, orders.EVENTS.name)
    ends = Counter(each["aggregate_id"] for each in told if each["type"] in ENDS)
    assert ends == {each["aggregate_id"]: 1 for each in told if each["type"] == "order.placed"}
    confirmed = [each["data"] for each in told if each["type"] == "order.confirmed"]
    lines = [(order["customer_id"], line) for order in confirmed for line in order["lines"]]
    left, owed = Counter[str](), Counter[str]()
    for delivery in _messages(log, inventory.EVENTS.name):
        if delivery["type"] == "stock.received":
            left[delivery["aggregate_id"]] += delivery["data"]["quantity"]
    for customer, line in lines:
        left[line["sku"]] -= line["quantity"]
        owed[customer] += line["amount_cents"]
    items = states(log, inventory.TOPOLOGY, inventory.ITEMS, "listed")
    assert {sku: (item["physical"], item["reservations"]) for sku, item in items.items()} == {
        sku: (pieces, {}) for sku, pieces in left.items()
    }
    customers = states(log, accounts.TOPOLOGY, accounts.ACCOUNTS, "open")
    assert customers.keys() >= owed.keys()
    assert {name: (account["balance_cents"], account["held"]) for name, account in customers.items()} == {
        name: (owed[name], {}) for name in customers
    }
    requested = Counter(each["aggregate_id"] for each in _messages(log, PICKUPS.events.name))
    assert requested == Counter(f"orders:{order}" for order in large_orders(log))


def large_orders(log: Told) -> list[str]:
    """For which a courier is called."""
    return [
        each["aggregate_id"]
        for each in _messages(log, orders.EVENTS.name)
        if each["type"] == "order.confirmed"
        and sum(line["amount_cents"] for line in each["data"]["lines"]) >= BY_COURIER_CENTS
    ]


def check_limits(log: Told) -> None:
    """No row that was ever committed has more pieces reserved than there are, or more owed than there is credit."""
    for said in log[_changelog(inventory.TOPOLOGY, inventory.ITEMS)]:
        item = json.loads(said.value)["state"]
        if item["phase"] == "listed":
            reserved = sum(item["reservations"].values())
            assert 0 <= item["reserved"] == reserved <= item["physical"], said
    for said in log[_changelog(accounts.TOPOLOGY, accounts.ACCOUNTS)]:
        account = json.loads(said.value)["state"]
        if account["phase"] == "open" and account["credit_limit_cents"] is not None:
            assert 0 <= account["balance_cents"] + sum(account["held"].values()) <= account["credit_limit_cents"], said


def check_table(log: Told, topology: Topology, processor: Processor) -> None:
    """The last row of each key is, byte by byte, that of a replay."""
    expected, rows = _rows(log, topology, processor)
    assert rows == expected


def _rows(log: Told, topology: Topology, processor: Processor) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """The last row of each key as a replay gives it, and as it is."""
    assert processor.table is not None
    expected, _ = replayed(processor, log[processor.source.name])
    rows = {said.key: said.value for said in log[_changelog(topology, processor.table)]}
    return expected, {key: value for key, value in rows.items() if value}  # of one that has ended, a tombstone is left


def states(log: Told, topology: Topology, table: Table, phase: str) -> dict[str, dict[str, Any]]:
    """The states of the live table's rows in this phase, by key."""
    said = log[_changelog(topology, table)]
    found = {each.key.decode(): json.loads(each.value)["state"] for each in said}
    return {key: state for key, state in found.items() if state["phase"] == phase}


def _messages(log: Told, topic: str) -> list[dict[str, Any]]:
    return [json.loads(said.value) for said in log[topic]]


def _changelog(topology: Topology, table: Table) -> str:
    return topology.changelog(table).name
