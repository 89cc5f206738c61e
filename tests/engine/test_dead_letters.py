"""A command that can't be handled becomes a dead letter; its neighbours and its worker go on."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from shared.dev.stack import Stack
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Offsets
from shared.runtime.positions import Place
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.engine.parked import release, send
from tests.faults.harness import get
from tests.faults.load import command
from tests.faults.log import Follower
from tests.waiting import eventually

pytestmark = pytest.mark.broker

ABSENT = object()


def _good(name: str) -> bytes:
    return command(name, f"charge-{uuid.uuid4()}", "account.charge", {"amount_cents": 1})


LATER = ("an unknown type", "a future version", "an unknown field", "an unknown field of the command")
"""What a later release may know, so that it keeps its place."""

BAD: Mapping[str, tuple[Any, Any]] = {  # (key, value) instead of a good record's, or functions of its account's name
    "empty": (ABSENT, b""),
    "a tombstone": (ABSENT, None),
    "not JSON": (ABSENT, b"charge!"),
    "cut off": (ABSENT, lambda name: _good(name)[:-1]),
    "not an object": (ABSENT, b"[1, 2]"),
    "not UTF-8": (ABSENT, b'{"type": "account.charge\xff"}'),
    "an unknown type": (ABSENT, lambda name: _good(name).replace(b"account.charge", b"account.rob")),
    "a future version": (ABSENT, lambda name: _good(name).replace(b'"schema_version": 1', b'"schema_version": 9')),
    "an unknown field": (ABSENT, lambda name: _good(name).replace(b'"data"', b'"extra": 1, "data"')),
    "an unknown field of the command": (ABSENT, lambda name: _good(name).replace(b'"amount', b'"extra": 1, "amount')),
    "a float": (ABSENT, lambda name: _good(name).replace(b'"amount_cents": 1', b'"amount_cents": 1.5')),
    "too deep": (ABSENT, b"[" * 100_000),
    "much, and control characters": (ABSENT, b"\x00" * 900_000),
    "no key": (None, _good),
    "another key": (lambda name: f"{name}-other".encode(), _good),
    "a key that is not UTF-8": (b"\xff\xfe", _good),
    "a long key": (b"k" * 200_000, _good),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_becomes_a_dead_letter(stack: Stack, kind: str) -> None:
    pids = [worker.pid for worker in stack.workers_of(TOPOLOGY.service)[:2]]
    name = f"dead-{uuid.uuid4()}"
    partition = partition_of(name.encode(), TOPOLOGY.partitions)
    key, value = (part(name) if callable(part) else part for part in BAD[kind])
    bad_key = name.encode() if key is ABSENT else key
    with _Letters(stack.bootstrap) as letters:
        send(stack.bootstrap, partition, name.encode(), command(name, "open", "account.open", {}))
        offset = send(stack.bootstrap, partition, bad_key, value)
        send(stack.bootstrap, partition, name.encode(), _good(name))
        letter = letters.await_one(partition, offset)
    assert letter["topic"] == COMMANDS.name
    assert letter["code"] == ("message.unknown" if kind in LATER else "message.bad")
    assert letter["reason"]
    assert _holds(letter["key"], bad_key)
    assert _holds(letter["value"], value)
    if kind in LATER:
        release(stack, f"accounts/{partition}/{name}", offset, behind=1)
    for worker in stack.workers_of(TOPOLOGY.service)[:2]:
        assert _settled(worker, name) == (200, 1, 2)
    assert [worker.pid for worker in stack.workers_of(TOPOLOGY.service)[:2]] == pids


def test_a_record_in_the_wrong_partition_for_its_key_is_bad(stack: Stack) -> None:
    """librdkafka's default partitioner sends four keys of five there: the account would exist twice."""
    name = f"dead-{uuid.uuid4()}"
    elsewhere = (partition_of(name.encode(), TOPOLOGY.partitions) + 1) % TOPOLOGY.partitions
    with _Letters(stack.bootstrap) as letters:
        offset = send(stack.bootstrap, elsewhere, name.encode(), command(name, "open", "account.open", {}))
        letter = letters.await_one(elsewhere, offset)
    assert letter["code"] == "message.bad"
    assert "partition" in letter["reason"]
    assert get(stack.workers[0], f"/accounts/{name}")[0] == 404


class _Letters:
    """The dead letters written from now on."""

    def __init__(self, bootstrap: str) -> None:
        places = [Place(TOPOLOGY.dead_letters.name, partition) for partition in range(TOPOLOGY.partitions)]
        self._follower = Follower(bootstrap, Offsets(bootstrap).ends(places))

    def __enter__(self) -> _Letters:
        self._follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._follower.end()

    def await_one(self, partition: int, offset: int) -> dict[str, Any]:
        """The letter for the command at this offset; there may be only one."""
        (letter,) = eventually(lambda: self._at(partition, offset))
        return letter

    def _at(self, partition: int, offset: int) -> list[dict[str, Any]]:
        letters = [json.loads(read.value or b"") for reads in self._follower.records.values() for read in reads]
        return [letter for letter in letters if (letter["partition"], letter["offset"]) == (partition, offset)]


def _holds(found: Mapping[str, Any] | None, raw: bytes | None) -> bool:
    """Whether this part of a letter is `raw`, or says that it is the beginning of `raw`."""
    if found is None or raw is None:
        return found is None and raw is None
    told = found["utf8"].encode() if "utf8" in found else base64.b64decode(found["base64"])
    return told == raw or (found["of_bytes"] == len(raw) and len(told) >= 1_000 and raw.startswith(told))


def _settled(worker: Any, name: str) -> tuple[int, int, int]:
    """(status, balance, sequence) once the good commands are decided."""

    def shown() -> tuple[int, int, int]:
        status, body = get(worker, f"/accounts/{name}")
        return status, body.get("balance_cents"), body.get("sequence")

    return eventually(shown, lambda found: found[2] == 2)
