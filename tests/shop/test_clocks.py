"""Timers fall due by the brokers' time, whatever the clock of who set them says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from services.orders.topology import COMMANDS, TIMERS
from shared.dev.stack import Stack
from shared.kafka.producer import producer_config
from tests.conftest import WORKER_SETTINGS
from tests.shop.market import read
from tests.waiting import eventually

pytestmark = pytest.mark.broker

AHEAD_S = 3000


@pytest.mark.long  # in short, the simulation
def test_a_timer_of_a_clock_that_is_ahead_falls_due_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DEADLINE_S", "1")
    with Stack(tmp_path, {"orders": 1}, settings=WORKER_SETTINGS) as stack:
        producer = Producer(producer_config(stack.bootstrap))
        producer.produce(TIMERS.name, b"a timer", b"o-1", timestamp=round((time.time() + AHEAD_S) * 1000))
        assert producer.flush(30) == 0
        eventually(lambda: [said.value for said in read(stack.bootstrap, COMMANDS.name)], [b"a timer"].__eq__)
