"""Parked records over HTTP, as an operator sees and releases them."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import httpx
from confluent_kafka import KafkaError, Message, Producer

from shared.dev.stack import Stack
from shared.kafka.producer import producer_config
from tests.accounts.topology import COMMANDS
from tests.waiting import Deadline, eventually

DEADLINE_S = 60.0


def send(bootstrap: str, partition: int, key: bytes | None, *values: bytes | None) -> int:
    """Appends records to the commands topic, and returns the offset of the last."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = Producer(producer_config(bootstrap))
    for value in values:
        producer.produce(COMMANDS.name, value, key, partition, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return offsets[-1]


def letter(stack: Stack, letter_id: str) -> dict[str, Any] | None:
    """What the first worker says is parked under the id; None when nothing is. Waits while the partition moves."""
    url = f"{stack.workers[0].url}/dead-letters/{quote(letter_id, safe='')}"
    deadline = Deadline(DEADLINE_S)
    while True:
        try:
            answer = httpx.get(url, timeout=10)
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code in (200, 404):
            return dict(answer.json()) if answer.status_code == 200 else None
        deadline.check(answer)
        time.sleep(0.1)


def await_letter(stack: Stack, letter_id: str, **expected: object) -> None:
    """Waits until the letter has these fields; without fields, until it is gone."""

    def is_so(found: dict[str, Any] | None) -> bool:
        if not expected:
            return found is None
        return found is not None and expected.items() <= found.items()

    eventually(lambda: letter(stack, letter_id), is_so)


def ask(stack: Stack, letter_id: str, action: str, body: dict[str, Any] | None = None, worker: int = 0) -> None:
    url = f"{stack.workers[worker].url}/dead-letters/{quote(letter_id, safe='')}/{action}"
    answer = httpx.post(url, json=body, timeout=30)
    assert answer.status_code == 202, answer.text


def release(stack: Stack, letter_id: str, offset: int, behind: int) -> None:
    """Discards the first record and retries those behind it."""
    await_letter(stack, letter_id, offset=offset, behind=behind)
    ask(stack, letter_id, "discard", {"offset": offset, "reason": "it was a test"}, worker=1)
    await_letter(stack, letter_id, behind=behind - 1, code="behind")
    ask(stack, letter_id, "retry")
    await_letter(stack, letter_id)
