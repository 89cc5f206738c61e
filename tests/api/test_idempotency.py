"""One Idempotency-Key, one effect: whichever worker is asked, however often, whatever happens in between."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.dev.stack import Stack
from tests.api.client import Answer, Client
from tests.queries.cluster import owners

pytestmark = pytest.mark.broker

AT_ONCE = 16


def test_the_same_key_again_gives_the_same_answer(workers: Sequence[Client], open_account: str, key: str) -> None:
    answers = [_charge(worker, open_account, key) for worker in (*workers, *workers)]
    assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
    assert _owed(workers[0], open_account) == 5


def test_a_key_is_known_after_many_later_commands_of_its_account(
    workers: Sequence[Client], open_account: str, key: str
) -> None:
    first = _charge(workers[0], open_account, key)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: _charge(workers[number % 2], open_account, f"{key}-{number}"), range(40)))
    assert [_charge(worker, open_account, key).body for worker in workers] == [first.body] * 2
    assert [worker.get(first.headers["location"]).body for worker in workers] == [first.body] * 2
    assert _owed(workers[0], open_account) == 5 * 41


def test_a_repeated_command_is_refused_again_even_if_it_could_now_succeed(
    workers: Sequence[Client], open_account: str, key: str
) -> None:
    def pay(worker: Client) -> Answer:
        return worker.post(f"{open_account}/payments", {"amount_cents": 5}, Idempotency_Key=key)

    refused = pay(workers[0])
    assert refused.code == "account.overpaid"
    assert _charge(workers[0], open_account, f"{key}-2").status == 201
    assert [pay(worker).body for worker in workers] == [refused.body] * 2
    assert _owed(workers[0], open_account) == 5


def test_the_same_key_with_another_body_is_refused(workers: Sequence[Client], open_account: str, key: str) -> None:
    assert _charge(workers[0], open_account, key).status == 201
    for worker in workers:
        assert _charge(worker, open_account, key, cents=6).code == "idempotency_key.reused"
        paid = worker.post(f"{open_account}/payments", {"amount_cents": 5}, Idempotency_Key=key)
        assert paid.code == "idempotency_key.reused"
    assert _owed(workers[0], open_account) == 5


def test_the_same_key_on_another_account_is_another_command(
    workers: Sequence[Client], open_account: str, key: str
) -> None:
    other = f"{open_account}-other"
    assert workers[0].post(other).status == 201
    for account in (open_account, other):
        assert _charge(workers[0], account, key).json["sequence"] == 2


def test_concurrent_requests_with_one_key_take_effect_once(
    workers: Sequence[Client], open_account: str, key: str
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(_charge, workers[number % 2], open_account, key) for number in range(AT_ONCE)]
        answers = [each.result() for each in asked]
    assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
    assert _owed(workers[0], open_account) == 5


def test_of_concurrent_bodies_with_one_key_only_one_is_accepted(
    workers: Sequence[Client], open_account: str, key: str
) -> None:
    def charge(number: int) -> Answer:
        return _charge(workers[number % 2], open_account, key, cents=number + 1)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(charge, range(AT_ONCE)))
    taken = [number + 1 for number, answer in enumerate(answers) if answer.status == 201]
    assert len(taken) == 1
    assert sum(answer.code == "idempotency_key.reused" for answer in answers) == AT_ONCE - 1
    assert _owed(workers[0], open_account) == taken[0]


def test_without_a_key_a_retry_is_a_new_command(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        assert worker.post(f"{open_account}/charges", {"amount_cents": 5}).status == 201
    assert _owed(workers[0], open_account) == 10


def test_a_recorded_answer_survives_a_restart_of_the_workers(
    stack: Stack, workers: Sequence[Client], open_account: str, key: str
) -> None:
    """One is killed, the other is stopped; both start again and neither decides the command again."""
    answer = _charge(workers[0], open_account, key)
    killed, stopped = stack.workers_of("accounts")[:2]
    killed.kill()
    stopped.stop()
    for worker in (killed, stopped):
        worker.spawn()
    for worker in (killed, stopped):
        worker.await_ready()
    owners(stack)  # the first may have to take over again when the second joins
    for client in workers:
        assert _charge(client, open_account, key).body == answer.body
    assert _owed(workers[0], open_account) == 5


def _charge(worker: Client, account: str, key: str, cents: int = 5) -> Answer:
    return worker.post(f"{account}/charges", {"amount_cents": cents}, Idempotency_Key=key)


def _owed(worker: Client, account: str) -> int:
    return int(worker.get(account).json["balance_cents"])
