"""Commands over HTTP and their answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.accounts.domain.decide import MAX_AMOUNT_CENTS
from tests.api.client import Answer, Client

pytestmark = pytest.mark.broker


def test_a_command_is_answered_once_it_is_decided(workers: Sequence[Client], account: str) -> None:
    first, second = workers
    assert first.post(account).json["sequence"] == 1
    assert second.post(f"{account}/charges", {"amount_cents": 2999}).json["sequence"] == 2
    paid = first.post(f"{account}/payments", {"amount_cents": 999})
    assert (paid.status, paid.json["sequence"]) == (201, 3)
    for worker in workers:
        found = worker.get(account)
        assert (found.status, found.json["balance_cents"], found.json["sequence"]) == (200, 2000, 3)


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (["charges 1"], "account.unknown"),
        (["payments 1"], "account.unknown"),
        (["closure"], "account.unknown"),
        (["", ""], "account.already_open"),
        (["", "closure", "closure"], "account.closed"),
        (["", "closure", "charges 1"], "account.closed"),
        (["", "closure", ""], "account.closed"),
        (["", "charges 5", "closure"], "account.owes"),
        (["", "charges 5", "payments 6"], "account.overpaid"),
        (["", "charges 0"], "account.amount_not_positive"),
        (["", "payments -1"], "account.amount_not_positive"),
        (["", f"charges {MAX_AMOUNT_CENTS + 1}"], "account.amount_too_large"),
    ],
)
def test_a_refusal_says_why(workers: Sequence[Client], account: str, steps: list[str], code: str) -> None:
    answers = [_step(workers[number % 2], account, step) for number, step in enumerate(steps)]
    assert [answer.status for answer in answers] == [201] * (len(steps) - 1) + [409]
    refused = answers[-1]
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.json["code"], refused.json["status"]) == (code, 409)
    assert refused.json["detail"]


def test_a_refusal_changes_nothing(workers: Sequence[Client], open_account: str) -> None:
    before = workers[0].get(open_account).json
    assert workers[1].post(f"{open_account}/payments", {"amount_cents": 1}).code == "account.overpaid"
    assert workers[0].get(open_account).json == before


@pytest.mark.parametrize("prefer", ["respond-async", "Respond-Async, wait=20", "wait=0"])
def test_a_caller_may_prefer_not_to_wait(workers: Sequence[Client], open_account: str, prefer: str) -> None:
    for worker in workers:
        accepted = worker.post(f"{open_account}/charges", {"amount_cents": 1}, Prefer=prefer)
        assert (accepted.status, accepted.json["sequence"]) == (202, None)
        assert _outcome(workers[0], accepted).status == 201


@pytest.mark.parametrize("prefer", ["wait=20", "handling=strict, wait=20", "WAIT=20"])
def test_a_caller_may_prefer_to_wait(workers: Sequence[Client], open_account: str, prefer: str) -> None:
    for worker in workers:
        assert worker.post(f"{open_account}/charges", {"amount_cents": 1}, Prefer=prefer).status == 201


def test_the_location_gives_the_same_outcome_on_every_worker(workers: Sequence[Client], open_account: str) -> None:
    charged = workers[0].post(f"{open_account}/charges", {"amount_cents": 7})
    refused = workers[1].post(f"{open_account}/payments", {"amount_cents": 8})
    for answer in (charged, refused):
        for worker in workers:
            found = worker.get(answer.headers["location"])
            assert (found.status, found.body) == (answer.status, answer.body)


def test_the_outcome_of_an_unknown_command_is_not_found(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        assert worker.get(f"{open_account}/commands/never-sent").code == "command.unknown"


def test_every_worker_names_the_same_owner(workers: Sequence[Client], open_account: str) -> None:
    asked = [worker.get(open_account) for worker in workers]
    assert len({(answer.headers["onefold-owner"], answer.headers["onefold-partition"]) for answer in asked}) == 1
    assert asked[0].headers["onefold-owner"] in {worker.url for worker in workers}


def test_a_read_at_an_answers_position_includes_the_command(workers: Sequence[Client], open_account: str) -> None:
    charged = workers[0].post(f"{open_account}/charges", {"amount_cents": 7})
    positions = charged.headers["onefold-position"]
    assert re.fullmatch(r"accounts\.commands\.v1/\d@\d+,accounts\.events\.v1/\d@\d+", positions)
    for worker in workers:
        assert worker.get(f"{open_account}?min_position={positions}").json["balance_cents"] == 7


@pytest.mark.parametrize("sent", ["2024-02-29T12:00:00Z", "1997-01-01T00:00:00+02:00"])
def test_a_command_may_have_occurred_in_the_past(workers: Sequence[Client], open_account: str, sent: str) -> None:
    assert workers[0].post(f"{open_account}/charges", {"amount_cents": 1}, Occurred_At=sent).status == 201


def _step(worker: Client, account: str, step: str) -> Answer:
    """`step` is the command's path, followed by its amount if it has one."""
    path, _, amount = step.partition(" ")
    body = {"amount_cents": int(amount)} if amount else None
    return worker.post(f"{account}/{path}".rstrip("/"), body)


def _outcome(worker: Client, accepted: Answer) -> Answer:
    """The outcome of a command sent without waiting: it is known once a later command of the account is decided."""
    location = accepted.headers["location"]
    account = location.partition("/commands/")[0]
    assert worker.post(f"{account}/charges", {"amount_cents": 1}, Prefer="wait=30").status == 201
    return worker.get(location)
