"""Commands sent at a steady rate while things break, with every acknowledgement recorded."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from confluent_kafka import KafkaError, Message, Producer

from shared.domain.ids import callers_id
from shared.kafka.producer import producer_config
from shared.runtime.positions import Place
from tests.accounts.topology import COMMANDS
from tests.faults.transfers import Transfers

TICK_S = 0.01
DUPLICATED = 0.1
POISONED_EVERY = 1_000  # commands; each holds back the later commands of its key
TRANSFERRED = 0.2
HTTP_ACCOUNTS = 40
HTTP_WAIT_S = 2
HTTP_TIMEOUT_S = 6.0
GIVE_UP_S = 120.0


Intent = tuple[str, dict[str, int]]
_OPEN: Intent = ("account.open", {})


class Sent(NamedTuple):
    """A record that the broker acknowledged, and the place that it named; of a repeated batch it may name no offset."""

    topic: str
    partition: int
    offset: int | None
    key: bytes | None
    value: bytes | None


class Steady(threading.Thread, ABC):
    """Sends records at a steady rate, some of them again later, and records every acknowledgement.

    counts: of the acknowledged records, by partition.
    """

    def __init__(self, bootstrap: str, seed: int, per_s: int) -> None:
        super().__init__(name="load", daemon=True)
        self.acknowledged: list[Sent] = []
        self.failures: list[str] = []
        self.counts = Counter[Place]()
        self.sent = 0
        self.random = random.Random(seed)
        self._later: list[tuple[str, bytes, bytes]] = []
        self._per_s = per_s
        self._ending = threading.Event()
        self._producer = Producer(producer_config(bootstrap, linger_ms=5, delivery_timeout_ms=120_000))

    def run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._ending.wait(TICK_S):
            due = int((time.monotonic() - began) * self._per_s)
            for _ in range(sent, due):
                self.send_next()
            sent = max(sent, due)
            self._producer.poll(0)
        for topic, key, value in self._later:
            self.send(topic, key, value)
        self._producer.flush()

    def end(self) -> None:
        """Returns when everything is acknowledged."""
        self._ending.set()
        self.join()

    @abstractmethod
    def send_next(self) -> None: ...

    def send_command(self, topic: str, key: bytes, value: bytes) -> None:
        """One in ten is repeated later, once or twice."""
        draw = self.random.random()
        self.send(topic, key, value)
        if draw < DUPLICATED:
            self._later += [(topic, key, value)] * self.random.randint(1, 2)
        elif self._later and draw > 1 - 2 * DUPLICATED:
            self.send(*self._later.pop(0))

    def send(self, topic: str, key: bytes | None, value: bytes) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error.str())
            else:
                sent = Sent(topic, message.partition() or 0, message.offset(), key, value)
                self.acknowledged.append(sent)
                self.counts[Place(sent.topic, sent.partition)] += 1

        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=delivered)
                self.sent += 1
                return
            except BufferError:  # the queue is full, as while no broker is there
                self._producer.poll(TICK_S)


class Load(Steady):
    """Appends to the commands topic: all kinds of commands, some of them repeated, a few of them poisoned.

    A fifth of them are of transfers, between accounts that have nothing else to do.
    """

    def __init__(self, bootstrap: str, seed: int, accounts: int, per_s: int, transfers: Transfers) -> None:
        super().__init__(bootstrap, seed, per_s)
        self._transfers = transfers
        self._names = new_names("f", accounts)
        self._unopened = list(self._names)
        self._number = 0

    def send_next(self) -> None:
        if self.random.random() < TRANSFERRED:
            order = self._transfers.next_order(self.random)
            self.send(COMMANDS.name, order.name.encode(), command(*order))
            return
        key, value = self._command()
        if self._number % POISONED_EVERY == 0:
            self.send(COMMANDS.name, *self.random.choice([*POISONS, _oversize])((key, value)))
        else:
            self.send_command(COMMANDS.name, key, value)

    def _command(self) -> tuple[bytes, bytes]:
        if self._unopened:
            name, (kind, data) = self._unopened.pop(), _OPEN
        else:
            name, (kind, data) = self.random.choice(self._names), self._intent()
        self._number += 1
        return name.encode(), command(name, f"c{self._number}", kind, data)

    def _intent(self) -> Intent:
        draw, amount = self.random.random(), self.random.randint(1, 10_000)
        if draw < 0.6:
            return "account.charge", {"amount_cents": amount}
        if draw < 0.95:
            return "account.pay", {"amount_cents": amount}
        if draw < 0.97:
            return "account.charge", {"amount_cents": -amount}
        return _OPEN if draw < 0.99 else ("account.close", {})


class Answered(NamedTuple):
    """A worker's answer to a command. code: of a refusal; sequence: of an acceptance."""

    name: str
    command_id: str
    status: int
    sequence: int | None
    code: str | None


class Reply(NamedTuple):
    status: int
    body: dict[str, Any]
    position: str


class HttpLoad(threading.Thread):
    """An HTTP client that repeats each command, with its idempotency key, at any worker until it is answered.

    After each command it reads some account, not older than the latest acknowledged write to it. fresh: how often it
    was shown; stale: answers without that write. tries: requests that were answered, or not in time.
    """

    def __init__(self, urls: Callable[[], Sequence[str]], seed: int) -> None:
        super().__init__(name="http load", daemon=True)
        self.answers: list[Answered] = []
        self.unanswered: list[str] = []
        self.strange: list[str] = []
        self.stale: list[str] = []
        self.fresh = 0
        self.tries = 0
        self._written: dict[str, tuple[str, int]] = {}
        self._urls = urls
        self._silent: str | None = None
        self._random = random.Random(seed)
        self._names = new_names("h", HTTP_ACCOUNTS)
        self._ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ending.wait(TICK_S):
            number += 1
            name = self._random.choice(self._names)
            path = self._random.choice(["", "/charges", "/payments"])
            body = {"amount_cents": self._random.randint(1, 5_000)} if path else None
            self._settle(name, f"h{number}", path, body)
            if self._written:
                self._read_back(self._random.choice(list(self._written)))

    def end(self) -> None:
        """Returns when the last command is answered."""
        self._ending.set()
        self.join()

    def _settle(self, name: str, key: str, path: str, body: dict[str, int] | None) -> None:
        give_up = time.monotonic() + GIVE_UP_S
        while time.monotonic() < give_up:
            wishes = {"Idempotency-Key": key, "Prefer": f"wait={HTTP_WAIT_S}"}
            reply = self._ask("POST", f"/accounts/{name}{path}", body, wishes)
            if reply is None or reply.status in (202, 503):
                continue
            status, answer, position = reply
            if status not in (201, 409):
                self.strange.append(f"{status} for {key} of {name}: {answer}")
            if status == 201:
                self._written[name] = position, answer["sequence"]
            decided = callers_id("", key)
            self.answers.append(Answered(name, decided, status, answer.get("sequence"), answer.get("code")))
            return
        self.unanswered.append(f"{key} of {name}")

    def _read_back(self, name: str) -> None:
        """Once: a worker may also answer 503, or not at all."""
        position, sequence = self._written[name]
        wait_s = self._random.randint(0, HTTP_WAIT_S)
        reply = self._ask("GET", f"/accounts/{name}?min_position={quote(position)}&wait={wait_s}")
        if reply is None or reply.status == 503:
            return
        if reply.status != 200 or reply.body["sequence"] < sequence:
            self.stale.append(f"stale: {reply} for {name}, which was at {sequence} by {position}")
        self.fresh += 1

    def _ask(
        self, method: str, path: str, body: dict[str, int] | None = None, wishes: Mapping[str, str] | None = None
    ) -> Reply | None:
        """Asks any worker, but not the one that was silent last; None without an answer."""
        url = self._random.choice([url for url in self._urls() if url != self._silent] or self._urls())
        reply = _reply(url, method, path, None if body is None else json.dumps(body), wishes or {})
        self._silent = None if reply else url
        self.tries += 1
        return reply


def _reply(url: str, method: str, path: str, body: str | None, wishes: Mapping[str, str]) -> Reply | None:
    """None without an answer: whether a command took effect is unknown."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=HTTP_TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **wishes})
        answer = connection.getresponse()
        return Reply(answer.status, json.loads(answer.read()), answer.headers.get("Onefold-Position", ""))
    except (OSError, http.client.HTTPException, ValueError):
        time.sleep(TICK_S)
        return None
    finally:
        connection.close()


def new_names(kind: str, count: int) -> list[str]:
    """Names that no scenario on the same topics has used."""
    run = uuid.uuid4().hex[:8]
    return [f"{kind}-{run}-{number}" for number in range(count)]


def command(name: str, command_id: str, kind: str, data: Mapping[str, Any]) -> bytes:
    envelope = {
        "command_id": command_id,
        "type": kind,
        "schema_version": 1,
        "aggregate_id": name,
        "issued_at": "2026-01-01T00:00:00Z",
        "correlation_id": command_id,
        "data": data,
    }
    return json.dumps(envelope).encode()


Keyed = tuple[bytes, bytes]
POISONS: Sequence[Callable[[Keyed], tuple[bytes | None, bytes]]] = (
    lambda good: (good[0], b"not JSON"),
    lambda good: (good[0], good[1][:-1]),
    lambda good: (good[0], b'{"name": "\xff\xfe"}'),
    lambda good: (good[0], good[1].replace(b"account.", b"accounting.")),
    lambda good: (b"another " + good[0], good[1]),
    lambda good: (None, good[1]),
)


def _oversize(good: Keyed) -> Keyed:
    """Nearly as large as a broker allows: a dead letter can't hold all of it."""
    return good[0], b"\xff" * 900_000
