"""A command for a row as it was read: whoever comes second is refused, whichever worker is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.client import Answer, Client

pytestmark = pytest.mark.broker

WRITERS = 100
ROUNDS = 3


def test_of_100_writers_that_read_the_same_row_one_changes_it(workers: Sequence[Client], open_account: str) -> None:
    def charge(worker: Client, etag: str) -> Answer:
        return worker.post(f"{open_account}/charges", {"amount_cents": 1}, If_Match=etag)

    with ThreadPoolExecutor(WRITERS) as pool:
        for written in range(1, ROUNDS + 1):
            etags = [worker.get(open_account).headers["etag"] for worker in workers]
            asked = [pool.submit(charge, workers[number % 2], etags[number % 2]) for number in range(WRITERS)]
            answers = Counter((each.result().status, each.result().code) for each in asked)
            assert answers == {(201, None): 1, (412, "sequence.mismatch"): WRITERS - 1}
            assert workers[0].get(open_account).json["balance_cents"] == written


def test_writers_that_read_again_lose_no_ones_change(workers: Sequence[Client], open_account: str) -> None:
    def charge_by_balance(number: int) -> None:
        """As a client would keep a rule that the domain does not know: what it sends depends on what it has read."""
        worker = workers[number % 2]
        while True:
            read = worker.get(open_account)
            amount = 1 + read.json["balance_cents"] % 2
            path, etag = f"{open_account}/charges", read.headers["etag"]
            if worker.post(path, {"amount_cents": amount}, If_Match=etag).status == 201:
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(charge_by_balance, range(16)))
    events = workers[0].get(f"{open_account}/events").json["items"]
    owed = 0
    for event in events[1:]:
        assert event["data"]["amount_cents"] == 1 + owed % 2
        owed += event["data"]["amount_cents"]
    assert len(events) == 17


def test_a_412_is_given_again_by_every_worker_until_another_key_is_used(
    workers: Sequence[Client], open_account: str, key: str
) -> None:
    first, second = (
        worker.post(f"{open_account}/charges", {"amount_cents": 1}, If_Match='"2"', Idempotency_Key=key)
        for worker in workers
    )
    assert (first.status, first.body) == (second.status, second.body)
    assert workers[0].post(f"{open_account}/charges", {"amount_cents": 1}).status == 201
    for worker in workers:
        assert worker.get(first.headers["location"]).body == first.body
    assert workers[1].post(f"{open_account}/charges", {"amount_cents": 1}, If_Match='"2"').json["sequence"] == 3
