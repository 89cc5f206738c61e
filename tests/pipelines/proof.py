"""One story for all histories: kills, a release with an upcaster, compaction, an archive, and the next version."""

from __future__ import annotations

import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
)

from pipelines import consistency
from pipelines.archive import Archive
from pipelines.catalog import table_of
from pipelines.rebuild import Rebuild
from services.accounts.domain.commands import AccountCommand
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.state import Account
from services.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from shared.dev.embedded import EmbeddedKafka
from shared.dev.worker import Worker, free_port
from shared.domain.decider import fold
from shared.domain.errors import DomainError
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from shared.operations.provision import provision, set_config
from shared.runtime.settings import Settings
from tests.conftest import WORKER_SETTINGS
from tests.pipelines.conftest import latest, read_records
from tests.waiting import eventually

ACCOUNTS = table_of("accounts", "accounts")
CHANGELOG = ACCOUNTS.changelog
NOON = datetime(1997, 1, 18, 12, tzinfo=UTC)
_APP = "services.accounts.app"
DEADLINE_S = 300.0  # enough for a busy machine
AT_ONCE = {"log.initial.task.delay.ms": 100, "log.retention.check.interval.ms": 500, "log.cleaner.backoff.ms": 500}
"""Otherwise a broker looks every few minutes for what is to be compacted or deleted."""

Asked = Sequence[tuple[str, AccountCommand]]
Fact = tuple[int, Account]
"""Sequence and state."""


def prove(histories: Mapping[str, Sequence[AccountCommand]], spark: Any, root: Path) -> None:
    """The fold made here, the live table over HTTP, its changelog and Spark all agree in the end."""
    first, second, third, fourth = _quarters(histories)
    with _running(root, spark) as accounts:
        accounts.set(CHANGELOG, segment_ms="1", min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="86400000")

        # a first release, and one with an upcaster that is killed in the middle of a transaction
        accounts.start("tests.pipelines.first_accounts")
        for part in (first, second):  # so that most accounts have an older row, outside the last segment
            accounts.ask(part)
            accounts.await_decided()
        accounts.worker.kill()
        accounts.ask(third)
        accounts.start(failpoint="after_offsets:kill:1")
        eventually(lambda: accounts.worker.exit_code, lambda code: code == -signal.SIGKILL, DEADLINE_S)
        accounts.start()
        accounts.await_decided()
        accounts.worker.kill()

        # a worker without a store restores from a compacted changelog, the last segment of which is never compacted
        written = read_records(accounts.bootstrap, CHANGELOG)
        accounts.set(CHANGELOG, min_compaction_lag_ms="0")
        fewer = len(written) - len(latest(written)) / 2
        eventually(lambda: len(read_records(accounts.bootstrap, CHANGELOG)), lambda left: left < fewer, DEADLINE_S)
        shutil.rmtree(accounts.stores)
        accounts.start()

        # events that only the archive still has
        archive = Archive(spark, str(root / "archive"), "accounts", EVENTS.name)
        archive.extend(accounts.brokers)
        accounts.await_read(EVENTS.name)
        ends = accounts.brokers.settled_ends(EVENTS.name)
        accounts.set(EVENTS.name, retention_ms="1")
        eventually(lambda: accounts.brokers.starts(EVENTS.name), lambda starts: starts == ends, DEADLINE_S)
        accounts.set(EVENTS.name, retention_ms="-1")
        accounts.ask(fourth)
        accounts.agree(archive)

        # what the next version starts with
        accounts.worker.stop()
        build = Rebuild(spark, accounts.brokers, [ACCOUNTS], 2, root / "work", archive=lambda _: archive)
        provision([build.topology], Settings(bootstrap=accounts.bootstrap))
        build.run(lambda *_: None)
        rebuilt = read_records(accounts.bootstrap, build.topology.changelog(ACCOUNTS.table).name)
        assert latest(rebuilt) == latest(read_records(accounts.bootstrap, CHANGELOG))


def _quarters(histories: Mapping[str, Sequence[AccountCommand]]) -> list[Asked]:
    """The commands of all accounts, interleaved, in quarters."""
    turns = [[(name, command) for command in history] for name, history in histories.items()]
    asked = [each for turn in zip_longest(*turns) for each in turn if each]
    bounds = [quarter * len(asked) // 4 for quarter in range(5)]
    return [asked[start:end] for start, end in pairwise(bounds)]


def _folded(asked: Asked) -> dict[str, Fact]:
    """Every account, folded by the domain alone."""
    facts: dict[str, Fact] = defaultdict(lambda: (0, DECIDER.initial))
    for name, command in asked:
        sequence, account = facts[name]
        try:
            events = DECIDER.decide(command, account)
        except DomainError:
            continue
        facts[name] = sequence + len(events), fold(DECIDER.evolve, events, account)
    return dict(facts)


class _Accounts:
    """The service on a broker, with one worker at a time."""

    def __init__(self, bootstrap: str, root: Path, spark: Any) -> None:
        self.bootstrap = bootstrap
        self.brokers = Brokers(bootstrap)
        self.stores = root / "stores"
        self._log = root / "logs" / "accounts.log"
        self._port = free_port()
        self._spark = spark
        self._settings = WORKER_SETTINGS.model_copy(update={"bootstrap": bootstrap, "data_dir": self.stores})
        self._asked: list[tuple[str, AccountCommand]] = []
        self.worker = self._new_worker()
        provision([TOPOLOGY], self._settings)

    def start(self, module: str = _APP, failpoint: str | None = None) -> None:
        """Replaces the worker by a new one, which is killed at `failpoint` if given."""
        self.worker.kill()
        self.worker = self._new_worker(module)
        self.worker.change(failpoint=failpoint, http_port=self._port)
        self.worker.spawn()

    def _new_worker(self, module: str = _APP) -> Worker:
        command = [sys.executable, "-m", "faust", "-A", module, "worker", "--without-web"]
        return Worker("accounts", "1", self._settings, self._log, lambda _: command)

    def ask(self, asked: Asked) -> None:
        producer = Producer(producer_config(self.bootstrap) | {"log_level": 0})
        codec = DECIDER.command_codec
        for name, command in asked:
            envelope = codec.wrap(command, command_id=f"c{len(self._asked)}", aggregate_id=name, issued_at=NOON)
            producer.produce(COMMANDS.name, codec.encode(envelope), name.encode())
            producer.poll(0)
            self._asked.append((name, command))
        assert producer.flush(DEADLINE_S) == 0

    def await_decided(self) -> None:
        self.worker.await_ready(DEADLINE_S)
        self.await_read(COMMANDS.name)

    def await_read(self, topic: str) -> None:
        ends = self.brokers.settled_ends(topic)
        eventually(lambda: self.brokers.positions(TOPOLOGY.group).get(topic), lambda at: at == ends, DEADLINE_S)

    def agree(self, archive: Archive) -> None:
        """Checks that all four agree: the fold made here, the changelog, the answers over HTTP, and Spark."""
        self.await_decided()
        expected = _folded(self._asked)
        assert _facts(latest(read_records(self.bootstrap, CHANGELOG))) == expected
        verdict = consistency.check(self._spark, self.brokers, ACCOUNTS, archive=archive, url=self.worker.url)
        told = f"{len(expected):,} of {len(expected):,} accounts agree ({len(expected):,} also over HTTP, "
        assert str(verdict).startswith(told)

    def set(self, topic: str, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for name, value in config.items():
            set_config(admin, topic, name.replace("_", "."), value)


def _facts(rows: Mapping[bytes, bytes | None]) -> dict[str, Fact]:
    decoded = {key.decode(): DECIDER.row_codec.decode(value or b"") for key, value in rows.items()}
    return {name: (row.sequence, row.state) for name, row in decoded.items()}


@contextmanager
def _running(root: Path, spark: Any) -> Iterator[_Accounts]:
    with EmbeddedKafka(root / "kafka", root / "logs", properties=AT_ONCE) as kafka:
        accounts = _Accounts(kafka.bootstrap, root, spark)
        try:
            yield accounts
        finally:
            accounts.worker.kill()
