"""The whole shop on a real broker, as its customers and its operators see it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import httpx

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.domain.ids import derived_id
from shared.runtime.positions import Place
from shared.testing.conversation import MemoryRecord
from tests.faults.log import Records, read_all, read_whole
from tests.waiting import Deadline, eventually

DEADLINE_S = 90.0
PAUSE_S = 0.05
LINES = 1_000  # of a request; 256 KiB are allowed
NOON = "1997-01-18T12:00:00Z"

Line = tuple[str, int, int]
"""SKU, number of pieces, cents for all pieces."""


class Market:
    """Every request is repeated, with its Idempotency-Key, until a worker answers it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._http = httpx.Client(timeout=30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def new(self, kind: str) -> str:
        """An unused id."""
        return f"{kind}-{uuid.uuid4().hex[:12]}"

    def deliver(self, sku: str, quantity: int, told_at: str = NOON) -> None:
        self.post("inventory", f"/items/{sku}/deliveries", {"quantity": quantity}, told_at)

    def open_account(self, customer: str, **limits: int) -> None:
        self.post("accounts", f"/accounts/{customer}", limits)

    def place(self, order: str, customer: str, *lines: Line, placed_at: str = NOON, told_at: str = NOON) -> None:
        wishes = [{"sku": sku, "quantity": quantity, "amount_cents": cents} for sku, quantity, cents in lines]
        body = {"customer_id": customer, "lines": wishes, "placed_at": placed_at}
        self.post("orders", f"/orders/{order}", body, told_at, key=story_of(order))

    def place_at_once(self, orders: Sequence[tuple[str, str, str]]) -> None:
        """Each an order, its customer and the SKU of which it wants a piece for a cent; none is waited for."""
        lines = [
            {
                "type": "order.place",
                "id": order,
                "body": {
                    "customer_id": customer,
                    "lines": [{"sku": sku, "quantity": 1, "amount_cents": 1}],
                    "placed_at": NOON,
                },
            }
            for order, customer, sku in orders
        ]
        headers = {"Content-Type": "application/x-ndjson", "Prefer": "respond-async"}
        for some in (lines[begin : begin + LINES] for begin in range(0, len(lines), LINES)):
            answer = self._http.post(
                f"{self.stack.urls('orders')[0]}/orders/commands",
                content="\n".join(map(json.dumps, some)),
                headers=headers,
            )
            assert {json.loads(line)["status"] for line in answer.text.splitlines()} <= {201, 202}, answer.text

    def cancel(self, order: str) -> None:
        self.post("orders", f"/orders/{order}/cancellation")

    def item(self, sku: str) -> dict[str, Any]:
        return self.get("inventory", f"/items/{sku}")

    def account(self, customer: str) -> dict[str, Any]:
        return self.get("accounts", f"/accounts/{customer}")

    def order(self, order: str) -> dict[str, Any]:
        return self.get("orders", f"/orders/{order}")

    def ended(self, order: str) -> dict[str, Any]:
        """The order, once its process has ended."""
        return eventually(lambda: self.order(order), lambda found: found["phase"] not in ("reserving", "charging"))

    def post(
        self, service: str, path: str, body: object = None, told_at: str = NOON, key: str | None = None
    ) -> httpx.Response:
        answer = self.try_to_post(service, path, body, told_at, key)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        return answer

    def try_to_post(
        self, service: str, path: str, body: object, told_at: str = NOON, key: str | None = None
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Occurred-At": told_at}
        return self._answer(service, "POST", path, json=body, headers=headers)

    def try_to_get(self, service: str, path: str) -> httpx.Response:
        return self._answer(service, "GET", path)

    def get(self, service: str, path: str) -> dict[str, Any]:
        answer = self._answer(service, "GET", path)
        assert answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND), answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _answer(self, service: str, method: str, path: str, **parts: Any) -> httpx.Response:
        deadline = Deadline(DEADLINE_S)
        while True:
            for url in self.stack.urls(service):
                try:
                    answer = self._http.request(method, url + path, **parts)
                except httpx.TransportError:
                    continue
                if answer.status_code not in (httpx.codes.ACCEPTED, httpx.codes.SERVICE_UNAVAILABLE):
                    return answer
            deadline.check(f"{service} does not answer {method} {path}")
            time.sleep(PAUSE_S)

    def workers(self, service: str) -> Sequence[Worker]:
        return self.stack.workers_of(service)

    @contextmanager
    def without(self, service: str) -> Iterator[None]:
        """Stops the service's workers for the duration of the block."""
        for worker in self.workers(service):
            worker.stop()
        try:
            yield
        finally:
            for worker in self.workers(service):
                worker.start(DEADLINE_S)

    def records(self, topic: str) -> list[MemoryRecord]:
        """Every committed record of a topic, partition after partition."""
        return read(self.stack.bootstrap, topic)

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """The bodies of `records`."""
        return [json.loads(record.value) for record in self.records(topic)]


def story_of(order: str) -> str:
    """The correlation id of everything that follows from placing the order."""
    return derived_id("story", order)


def read(bootstrap: str, topic: str) -> list[MemoryRecord]:
    """Every committed record of a topic, partition after partition."""
    return said_by_topic(read_whole(bootstrap, topic)).get(topic, [])


def read_from(bootstrap: str, places: Mapping[Place, int]) -> list[MemoryRecord]:
    """Every record committed from these offsets on, partition after partition."""
    return [said for told in said_by_topic(read_all(bootstrap, places)).values() for said in told]


def said_by_topic(records: Records) -> dict[str, list[MemoryRecord]]:
    """By topic, partition after partition."""
    found: dict[str, list[MemoryRecord]] = {topic: [] for topic, _ in records}
    for (topic, partition), reads in sorted(records.items()):
        found[topic] += [
            MemoryRecord(topic, read.key or b"", read.value or b"", read.offset, partition) for read in reads
        ]
    return found
