"""The ledger finds nothing wrong in the log of a shop in memory, and something in every doctored one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from services.accounts.topology import ACCOUNTS
from services.accounts.topology import COMMANDS as ACCOUNT_COMMANDS
from services.accounts.topology import EVENTS as ACCOUNT_EVENTS
from services.inventory.topology import COMMANDS as ITEM_COMMANDS
from services.inventory.topology import EVENTS as ITEM_EVENTS
from services.inventory.topology import ITEMS
from services.orders.topology import COMMANDS, EVENTS, TIMERS
from shared.runtime.positions import Place
from shared.testing.conversation import Conversation
from tests.faults.load import command
from tests.faults.log import Arrived, Read
from tests.shop import books, ledger
from tests.shop.ledger import by_cause, wrong_moves

Log = list[Arrived]
Message = dict[str, Any]


@pytest.fixture(scope="module")
def log() -> Log:
    """Ten orders, with pieces for eight and credit for six, one of them cancelled; topic after topic."""
    chance, talk = random.Random(1), Conversation([processor for _, processor in books.PROCESSORS])
    talk.say(ITEM_COMMANDS, "abba", command("abba", "receive", "stock.receive", {"quantity": 8}))
    talk.say(ACCOUNT_COMMANDS, "ann", command("ann", "open", "account.open", {"credit_limit_cents": 600}))
    for number in range(10):
        lines = [{"sku": "abba", "quantity": 1, "amount_cents": 100}]
        order = {"customer_id": "ann", "lines": lines, "placed_at": "2026-01-01T00:00:00Z"}
        talk.say(COMMANDS, f"o-{number}", command(f"o-{number}", f"place {number}", "order.place", order))
    talk.say(COMMANDS, "o-3", command("o-3", "cancel", "order.cancel", {}))
    talk.run(lambda turns: chance.choice([turn for turn in turns if turn[0] != TIMERS.name] or turns))
    topics = (COMMANDS, EVENTS, ACCOUNT_EVENTS, ITEM_EVENTS, ACCOUNT_COMMANDS, ITEM_COMMANDS)
    said = [(Place(t.name, 0), Read(each.offset, each.key, each.value)) for t in topics for each in talk.log[t.name]]
    tables = ((ledger.ITEMS, ITEMS), (ledger.ACCOUNTS, ACCOUNTS))
    rows = [(Place(name, 0), Read(0, k.encode(), row)) for name, table in tables for k, row in talk.rows(table).items()]
    return said + rows


def test_nothing_is_wrong_with_a_good_log(log: Log) -> None:
    assert list(wrong_moves(log)) == []


def test_every_message_comes_after_its_cause(log: Log) -> None:
    messages, left = by_cause(log)
    assert not left
    assert len(messages) > 100
    known: set[str | None] = {None}
    for message in messages:
        assert message.get("causation_id") in known
        known.add(message.get("event_id") or message["command_id"])


def test_nothing_is_wrong_with_any_beginning_but_what_waits_for_its_cause(log: Log) -> None:
    ordered = [each for each in log if each[0][0] in ledger.MESSAGES]
    for end in range(0, len(ordered), 7):
        assert all("without its cause" in wrong for wrong in wrong_moves(ordered[:end]))


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize(
    "kind",
    [
        "stock.received",
        "stock.reserved",
        "stock.shipped",
        "stock.released",
        "account.order_charged",
        "account.order_settled",
        "order.confirmed",
    ],
)
def test_an_event_that_is_missing_or_there_twice_is_noticed(log: Log, kind: str, times: int) -> None:
    at = _first(log, kind)
    assert list(wrong_moves([*log[:at], *[log[at]] * times, *log[at + 1 :]]))


def _changed(**data: object) -> Callable[[Message], Message]:
    return lambda event: {**event, "data": {**event["data"], **data}}


@pytest.mark.parametrize(
    ("kind", "doctored"),
    [
        ("stock.reserved", _changed(quantity=2)),
        ("stock.shipped", _changed(order_id="orders:o-3")),
        ("stock.received", _changed(quantity=7)),
        ("account.order_charged", _changed(amount_cents=99)),
        ("account.order_settled", _changed(amount_cents=99)),
        ("order.confirmed", lambda event: {**event, "type": "order.rejected"}),
        ("stock.reserved", lambda event: {**event, "causation_id": "nobody"}),
    ],
)
def test_a_doctored_event_is_noticed(log: Log, kind: str, doctored: Callable[[Message], Message]) -> None:
    at = _first(log, kind)
    place, read = log[at]
    value = json.dumps(doctored(json.loads(read.value or b""))).encode()
    assert list(wrong_moves([*log[:at], (place, read._replace(value=value)), *log[at + 1 :]]))


def test_a_doctored_row_is_noticed(log: Log) -> None:
    *rest, (place, read) = log
    row = json.loads(read.value or b"")
    row["state"]["balance_cents"] += 1
    assert list(wrong_moves([*rest, (place, read._replace(value=json.dumps(row).encode()))]))


def _first(log: Log, kind: str) -> int:
    return next(n for n, (_, read) in enumerate(log) if json.loads(read.value or b"").get("type") == kind)
