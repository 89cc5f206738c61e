"""The story of every order, as operators ask for it, against the log and its ledger."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from subprocess import run
from typing import Any
from urllib.parse import quote

import pytest

from services.orders import topology as orders
from shared.runtime.settings import Settings
from shared.testing.conversation import MemoryRecord
from tests.faults.log import Records
from tests.shop.books import TOPOLOGIES, settled
from tests.shop.ledger import MESSAGES, by_cause
from tests.shop.market import NOON, Market, said_by_topic, story_of

pytestmark = pytest.mark.broker

TOPICS = {topic.name for topology in TOPOLOGIES for topic in topology.topics if topic.kind != "public"}
STORY = (sys.executable, "-P", "-m", "shared.dev.cli", "story")


@pytest.fixture(scope="module")
def placed(market: Market) -> list[str]:
    """Orders that end in every way: confirmed, without stock or credit, and cancelled if that comes in time."""
    sku, customer = market.new("sku"), market.new("customer")
    market.deliver(sku, 12)
    market.open_account(customer, order_limit_cents=5000)
    found = [market.new("order") for _ in range(20)]
    for number, order in enumerate(found):
        other = market.new("sku")
        market.deliver(other, 1)
        market.place(order, customer, (sku, 1, 5001 if number % 5 == 4 else 100), (other, 1, 1))
        if number % 7 == 6:
            market.try_to_post("orders", f"/orders/{order}/cancellation", None, NOON)
    for order in found:
        market.ended(order)
    return found


@pytest.fixture(scope="module")
def log(market: Market, placed: Sequence[str]) -> Records:
    """Every record, once nothing more comes. As for `test_replay`, no view may have been computed again before."""
    return settled(market.stack.bootstrap)


def said(log: Records) -> dict[str, dict[str, dict[str, Any]]]:
    """The bodies of all messages, by correlation id and place."""
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for topic, records in said_by_topic(log).items():
        for each in records if topic in TOPICS else ():
            body = json.loads(each.value)
            found[body["correlation_id"]][place(each)] = body
    return found


def place(record: MemoryRecord) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def id_of(body: Mapping[str, Any]) -> str:
    return str(body.get("event_id") or body["command_id"])


def check(story: dict[str, Any], records: dict[str, dict[str, Any]]) -> None:
    """It has exactly these records, and each is below the one that it follows from."""
    steps = story["steps"]
    places = ["{topic}/{partition}/{offset}".format(**each) for each in steps]
    assert sorted(places) == sorted(records)
    assert story["whole"]
    assert story["unread"] == []
    for at, (where, step) in enumerate(zip(places, steps, strict=True)):
        body, cause = records[where], None if step["cause"] is None else records[places[step["cause"]]]
        assert (step["id"], step["type"]) == (id_of(body), body["type"])
        if cause is None:
            assert body.get("causation_id") is None
            assert step["depth"] == 0
        else:
            assert step["cause"] < at
            assert step["depth"] == steps[step["cause"]]["depth"] + 1
            assert id_of(cause) in (body["causation_id"], id_of(body))


def test_the_story_of_every_order_is_complete(market: Market, placed: Sequence[str], log: Records) -> None:
    stories = said(log)
    messages, left = by_cause((place, read) for place, reads in log.items() for read in reads)
    assert not left
    ledger: dict[str, set[str]] = defaultdict(set)
    for message in messages:
        ledger[message["correlation_id"]].add(id_of(message))
    for order in placed:
        found = market.get("orders", f"/stories/{story_of(order)}")
        check(found, stories[story_of(order)])
        assert {step["id"] for step in found["steps"] if step["topic"] in MESSAGES} == ledger[story_of(order)]


@pytest.mark.long  # in short, its correlation id does
def test_any_message_of_a_story_leads_to_the_whole_of_it_from_any_service(
    market: Market, placed: Sequence[str], log: Records
) -> None:
    records = said(log)[story_of(placed[0])]
    services = ("accounts", "inventory", "orders", "sales")
    for at, (where, body) in enumerate(records.items()):
        for known in (where, id_of(body)):
            check(market.get(services[at % 4], f"/stories/{quote(known, safe='')}"), records)


def test_it_is_shown_as_a_tree_and_as_json(market: Market, placed: Sequence[str], log: Records) -> None:
    environment = Settings(bootstrap=market.stack.bootstrap).environment()
    order = placed[0]
    told = run([*STORY, story_of(order), "--json"], env=environment, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    check(json.loads(told.stdout), said(log)[story_of(order)])
    drawn = run([*STORY, story_of(order)], env=environment, capture_output=True, text=True, timeout=60)
    assert drawn.returncode == 0, drawn.stderr
    lines = drawn.stdout.splitlines()
    assert lines[0] == f"story {story_of(order)}"
    assert lines[3].startswith(f"order.place  {order} ")
    assert f"{orders.COMMANDS.name}/" in lines[3]
    unknown = run([*STORY, "nobody"], env=environment, capture_output=True, text=True, timeout=60)
    assert unknown.returncode == 1
    assert "nothing in the log has the id 'nobody'; fix: " in unknown.stderr


def test_an_id_that_nothing_has_is_not_found(market: Market, log: Records) -> None:
    for unknown in ("nobody", "orders.events.v1/0/999999", "orders.events.v1/99/0", "orders.dead.v1/0/0"):
        answer = market.try_to_get("orders", f"/stories/{quote(unknown, safe='')}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
