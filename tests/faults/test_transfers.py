"""The total of the transfers is checked after every event, and no doctored log passes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from shared.runtime.positions import Place
from tests.accounts.topology import EVENTS
from tests.faults.log import Arrived, Read
from tests.faults.transfers import Books, Order, Transfers, wrong_totals

NAMES = ["ann", "bob", "eve"]
EVENT_OF = {
    "account.open": "account.opened",
    "account.charge": "account.charged",
    "account.pay": "account.payment_received",
}

Log = list[Arrived]


@pytest.fixture
def log() -> Log:
    """A good one: every order that can take effect does so once, and is read at once."""
    log: Log = []
    transfers, decided, chance = Transfers(NAMES, log), set[str](), random.Random(1)
    balances = dict.fromkeys(NAMES, 0)
    while len(log) < 100:
        order = transfers.next_order(chance)
        change = {"account.charge": 1, "account.pay": -1}.get(order.type, 0) * order.data.get("amount_cents", 0)
        if order.command_id not in decided and balances[order.name] + change >= 0:
            balances[order.name] += change
            log.append(_event(order, len(log)))
        decided.add(order.command_id)
    return log


def test_a_transfer_is_credited_after_its_debit_was_read(log: Log) -> None:
    books = Books()
    assert list(wrong_totals(books, log, NAMES)) == []
    assert books.completed > 10
    assert books.missing == 0


def test_the_total_holds_at_every_beginning_of_the_log(log: Log) -> None:
    for end in range(len(log)):
        assert list(wrong_totals(Books(), log[:end], NAMES)) == []


def _without_a_debit(log: Log) -> Log:
    at = _first(log, "debit-3")
    return [*log[:at], *log[at + 1 :]]


def _debited_twice(log: Log) -> Log:
    at = _first(log, "debit-3")
    return [*log, log[at]]


def _credited_twice(log: Log) -> Log:
    at = _first(log, "credit-3")
    return [*log[:at], log[at], *log[at:]]


def _credited_before_its_debit(log: Log) -> Log:
    debit, credit = _first(log, "debit-3"), _first(log, "credit-3")
    return [*log[:debit], log[credit], *log[debit:credit], *log[credit + 1 :]]


def _credited_a_cent_less(log: Log) -> Log:
    at = _first(log, "credit-3")
    place, read = log[at]
    event = json.loads(read.value or b"")
    event["data"]["amount_cents"] -= 1
    return [*log[:at], (place, read._replace(value=json.dumps(event).encode())), *log[at + 1 :]]


def _funded_twice(log: Log) -> Log:
    return [*log, log[_first(log, "fund-ann")]]


@pytest.mark.parametrize(
    "doctored",
    [
        _without_a_debit,
        _debited_twice,
        _credited_twice,
        _credited_before_its_debit,
        _credited_a_cent_less,
        _funded_twice,
    ],
)
def test_a_doctored_log_is_noticed(log: Log, doctored: Callable[[Log], Log]) -> None:
    assert any("total of transfers" in each for each in wrong_totals(Books(), doctored(log), NAMES))


def _first(log: Sequence[Arrived], command_id: str) -> int:
    return next(n for n, causes in enumerate(_causes(log)) if causes == command_id)


def _causes(log: Sequence[Arrived]) -> Iterator[str]:
    return (json.loads(read.value or b"")["causation_id"] for _, read in log)


def _event(order: Order, offset: int) -> Arrived:
    body = {"sequence": 0, "type": EVENT_OF[order.type], "causation_id": order.command_id, "data": order.data}
    return Place(EVENTS.name, 0), Read(offset, order.name.encode(), json.dumps(body).encode())
