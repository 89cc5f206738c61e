"""A group of stock Faust workers under a steady load, and what their table's changelog says of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

from shared.dev.worker import Worker
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Table, Topic, Topology
from tests.faults.log import read_whole
from tests.waiting import eventually

KEYS = 256
PAUSE_S = 0.005
MORE = 100
STOP_DEADLINE_S = 30.0
DEADLINE_S = 180.0
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Seen:
    """lost: events that the group has passed, and that the table lacks though it has later ones of their key.

    repeated: those counted again. crashed: workers.
    """

    lost: int
    repeated: int
    crashed: int


class Group:
    """One worker at first, and a sender that never pauses: numbers from 1 on for each key."""

    def __init__(self, bootstrap: str, root: Path, guarantee: str, partitions: int) -> None:
        self.name = f"stock{next(_NUMBERS)}"
        self._settings = Settings(bootstrap=bootstrap, data_dir=root)
        self._brokers = Brokers(bootstrap)
        self._source = Topic(f"{self.name}.numbers.v1")
        self._guarantee = guarantee
        self._partitions = partitions
        self._first, self._second = (self._worker(number, root / f"{self.name}-{number}.log") for number in ("1", "2"))
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        seen = Table("seen", self._source)
        provision([Topology(self.name, (self._source,), (seen,), self._partitions)], self._settings)
        self._sender.start()
        self._first.spawn()
        self._await_progress(self._first)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sender.join()
        self._first.kill()
        self._second.kill()

    def scale_out_and_in(self) -> None:
        """A second worker joins, works, and gets SIGTERM. Returns when the first goes on, or one is dead."""
        self._second.spawn()
        self._await_progress(self._second)
        if self._crashed():
            return
        os.kill(self._second.pid, signal.SIGTERM)
        self._second.await_end(STOP_DEADLINE_S)
        self._await_progress(self._first)

    def kill_and_restart(self) -> None:
        """SIGKILL to the only worker, which is started again. Returns when it goes on, or is dead."""
        self._await_progress(self._first)
        self._first.kill()
        self._first.spawn()
        self._await_progress(self._first)

    def seen(self) -> Seen:
        done = self._brokers.positions(self.name).get(self._source.name, {})
        table = self._table()
        sent = read_whole(self._settings.bootstrap, self._source.name)
        passed = (
            (table[read.key or b""], int(read.value or b""))
            for (_, partition), records in sent.items()
            for read in records
            if read.offset < done.get(partition, 0)
        )
        lost = sum(times[number] == 0 and number < max(times, default=0) for times, number in passed)
        repeated = sum(times.total() - len(times) for times in table.values())
        return Seen(lost, repeated, self._crashed())

    def _table(self) -> defaultdict[bytes, Counter[int]]:
        """How often the table has counted each number of each key, by the changelog."""
        table: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
        for records in read_whole(self._settings.bootstrap, f"{self.name}-seen-changelog").values():
            for read in records:
                runs = json.loads(read.value or b"")
                key = json.loads(read.key or b"").encode()
                table[key] = Counter(number for first, last in runs for number in range(first, last + 1))
        return table

    def _worker(self, instance: str, log: Path) -> Worker:
        variables = {
            "STOCK_NAME": self.name,
            "STOCK_SOURCE": self._source.name,
            "STOCK_PARTITIONS": self._partitions,
            "STOCK_GUARANTEE": self._guarantee,
        }
        faust = [sys.executable, "-m", "faust", "-A", "tests.characterisation.stock_faust", "worker", "--without-web"]
        command = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *faust, "-l", "info"]
        return Worker(self.name, instance, self._settings, log, lambda _: command)

    def _await_progress(self, worker: Worker) -> None:
        """Returns when it has handled more, or any is dead."""
        enough = _handled(worker) + MORE
        eventually(lambda: _handled(worker) >= enough or self._crashed(), deadline_s=DEADLINE_S)

    def _crashed(self) -> int:
        """How many have ended that nobody ended."""
        return sum(worker.exit_code is not None for worker in (self._first, self._second))

    def _send(self) -> None:
        producer = Producer(producer_config(self._settings.bootstrap, linger_ms=5))
        for number in count():
            if self._over.wait(PAUSE_S):
                break
            turn, key = divmod(number, KEYS)
            producer.produce(self._source.name, b"%d" % (turn + 1), b"key-%d" % key)
            producer.poll(0)
        producer.flush()


def _handled(worker: Worker) -> int:
    return worker.log.read_bytes().count(b"handled ") if worker.log.exists() else 0
