"""Many commands in one request, for accounts of both workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.api.client import Client

pytestmark = pytest.mark.broker

ACCOUNTS = 40
NDJSON = {"Content-Type": "application/x-ndjson"}


def send(worker: Client, sent: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = worker.ask("POST", "/accounts/commands", b"\n".join(json.dumps(each).encode() for each in sent), NDJSON)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def test_each_worker_answers_each_line_in_its_place_and_a_repeat_the_same(workers: Sequence[Client], key: str) -> None:
    names = [f"{key}-{number}" for number in range(ACCOUNTS)]
    opened = [{"type": "account.open", "id": name, "idempotency_key": "open"} for name in names]
    charged = [
        {
            "type": "account.charge",
            "id": names[number % ACCOUNTS],
            "body": {"amount_cents": 1},
            "idempotency_key": f"charge-{number}",
            "if_match": 1 + number // ACCOUNTS,
        }
        for number in range(10 * ACCOUNTS)
    ]
    stale = [{"type": "account.close", "id": name, "idempotency_key": "close", "if_match": 1} for name in names]
    first = send(workers[0], [*opened, *charged, *stale])
    assert [each["status"] for each in first] == [201] * 11 * ACCOUNTS + [412] * ACCOUNTS
    assert [each["sequence"] for each in first[: 11 * ACCOUNTS]] == [1 + n // ACCOUNTS for n in range(11 * ACCOUNTS)]
    again = send(workers[1], [*opened, *charged, *stale])
    assert [without_position(each) for each in again] == [without_position(each) for each in first]
    for name, worker in zip(names, [*workers] * ACCOUNTS, strict=False):
        assert worker.get(f"/accounts/{name}").json["balance_cents"] == 10


def test_a_read_at_the_position_of_a_line_includes_its_command(workers: Sequence[Client], key: str) -> None:
    names = [f"{key}-{number}" for number in range(8)]
    answers = send(workers[0], [{"type": "account.open", "id": name} for name in names])
    for name, answer in zip(names, answers, strict=True):
        for worker in workers:
            assert worker.get(f"/accounts/{name}?min_position={answer['position']}").json["sequence"] == 1
            assert worker.get(answer["location"]).json == {"command_id": answer["command_id"], "sequence": 1}


def without_position(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "position"}
