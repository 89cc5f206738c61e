"""A service gets more partitions, through the death of the command that does it, and goes on as if nothing had been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from shared.dev.repartition import repartition
from shared.dev.stack import Stack
from shared.dev.worker import Worker, app_command
from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Brokers, GroupIsLive
from shared.kafka.murmur2 import partition_of
from shared.kafka.spans import read_all
from shared.operations.provision import provision
from shared.runtime.checkout import CHECKOUT
from shared.topology import Service
from tests.engine.baskets import baskets, tales_of
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

OLD, NEW = 2, 6
CARTS = [f"cart-{number}" for number in range(150)]
CHECKED_OUT = CARTS[::3]


class Shop:
    """One worker at a time, and who asks it."""

    def __init__(self, name: str, stack: Stack, folder: Path) -> None:
        self.name = name
        self._stack = stack
        self._log = folder / "worker.log"
        self.worker: Worker | None = None
        self._http = httpx.Client(timeout=20, trust_env=False)

    def open(self, partitions: int, delay_s: float) -> None:
        env = ["env", f"BASKETS={self.name} {partitions} {delay_s}", *app_command("tests.engine.baskets_app")]
        self.worker = Worker(self.name, "1", self._stack.settings, self._log, lambda _: env)
        self.worker.start()

    def close(self) -> None:
        if self.worker is not None:
            assert self.worker.stop()
            self.worker = None

    def end(self) -> None:
        if self.worker is not None:
            self.worker.kill()
        self._http.close()

    def post(self, cart: str, what: str, body: dict[str, str], key: str) -> tuple[int, Any]:
        assert self.worker is not None
        headers = {"Idempotency-Key": key}
        answer = self._http.post(f"{self.worker.url}/carts/{cart}/{what}", json=body, headers=headers)
        return answer.status_code, answer.json().get("sequence")

    def add(self, cart: str, item: str) -> tuple[int, Any]:
        return self.post(cart, "items", {"item": item}, f"{cart}-{item}")

    def check_out(self, cart: str) -> tuple[int, Any]:
        return self.post(cart, "check-out", {}, f"{cart}-out")

    def get(self, path: str) -> tuple[int, Any]:
        assert self.worker is not None
        answer = self._http.get(f"{self.worker.url}{path}", params={"wait": 10})
        return answer.status_code, answer.json() if answer.status_code == 200 else None

    def all_shown(self) -> dict[str, Any]:
        """Of every cart: its row, its row in the view, and its history."""
        paths = [path.format(cart) for cart in CARTS for path in ("/carts/{}", "/waiting/{}", "/carts/{}/events")]
        with ThreadPoolExecutor(8) as pool:
            return dict(zip(paths, pool.map(self.get, paths), strict=True))

    def told(self) -> Counter[tuple[str, str]]:
        """How often each was told of, at once or later."""
        found = read_all(Brokers(self._stack.bootstrap), f"tales-of-{self.name}.commands.v1")
        bodies = [json.loads(value or b"") for _, _, value in found]
        return Counter((each["aggregate_id"], each["data"]["what"]) for each in bodies)


def checkout(name: str, partitions: int) -> list[Service]:
    return [baskets(name, partitions), tales_of(name, partitions)]


@pytest.fixture
def shop(stack: Stack, tmp_path: Path) -> Iterator[Shop]:
    name = f"baskets-{abs(hash(tmp_path)) % 1_000_000}"
    provision([each.topology for each in checkout(name, OLD)], stack.settings)
    one = Shop(name, stack, tmp_path)
    yield one
    one.end()


def test_a_killed_repartition_goes_on_and_services_as_if_nothing_had_been(
    stack: Stack, shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting, value in stack.settings.environment().items():
        monkeypatch.setenv(setting, value)
    checked_out = Counter((cart, "checked out") for cart in CHECKED_OUT)
    shop.open(OLD, delay_s=3_600)
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(lambda cart: shop.add(cart, "book"), CARTS[:100])} == {(201, 1)}
        repartition(checkout(shop.name, OLD), stack.settings, NEW, dry_run=False, ahead=True)
        assert {*pool.map(lambda cart: shop.add(cart, "book"), CARTS[100:])} == {(201, 1)}
        assert {*pool.map(shop.check_out, CHECKED_OUT)} == {(201, 2)}
    eventually(shop.told, lambda told: told == checked_out)
    eventually(shop.all_shown, lambda now: all(now[f"/carts/{cart}/events"][0] == 200 for cart in CARTS))
    with pytest.raises(GroupIsLive):
        repartition(checkout(shop.name, OLD), stack.settings, NEW, dry_run=False)
    before = shop.all_shown()
    shop.close()

    repartition(checkout(shop.name, OLD), stack.settings, NEW, dry_run=True)
    told = capsys.readouterr().out
    assert f"{shop.name}.events.v1: {OLD} → {NEW} partitions" in told
    assert f"policy.tell passes over what it has handled of {shop.name}.events.v1" in told
    typed = [sys.executable, "-P", "-m", "tests.engine.repartitioned", shop.name, str(OLD), str(NEW), "300"]
    assert subprocess.run(typed, cwd=CHECKOUT, check=False).returncode == -signal.SIGKILL
    with pytest.raises(OnefoldError, match=f"to {NEW} partitions was begun"):
        repartition(checkout(shop.name, OLD), stack.settings, NEW + 1, dry_run=True)
    repartition(checkout(shop.name, NEW), stack.settings, NEW, dry_run=False)
    provision([each.topology for each in checkout(shop.name, NEW)], stack.settings)

    brokers = Brokers(stack.bootstrap)
    for topic in (f"{shop.name}.commands.v1", f"{shop.name}.events.v1", f"{shop.name}-carts-changelog"):
        records = [*read_all(brokers, topic)]
        assert all(number == partition_of(key or b"", NEW) for number, key, _ in records)
        assert len({number for number, _, _ in records}) == NEW
    assert {key.decode() for _, key, row in records if key and row} == {*CARTS} - {*CHECKED_OUT}, "only what is left"
    left = AdminClient({"bootstrap.servers": stack.bootstrap}).list_topics(timeout=10).topics
    assert not [topic for topic in left if topic.endswith(".staged") or "journal" in topic]

    shop.open(NEW, delay_s=0.1)
    assert eventually(shop.all_shown, lambda now: now == before) == before
    assert shop.add(CARTS[0], "book") == (201, 1), "it is known"
    assert shop.check_out(CHECKED_OUT[1]) == (201, 2)
    assert shop.add(CHECKED_OUT[0], "map") == (201, 3), "one that has ended goes on"
    assert shop.add(CARTS[1], "map") == (201, 2)
    timers = Counter([*((cart, "book") for cart in CARTS), (CHECKED_OUT[0], "map"), (CARTS[1], "map")])
    eventually(shop.told, lambda told: told >= checked_out + timers)
    assert shop.told() == checked_out + timers, "each once"
