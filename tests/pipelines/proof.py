"""One story for all histories: a first release, then one with an upcaster that is killed in a transaction."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from pipelines import parity
from pipelines.catalog import table_of
from services.accounts.domain.commands import AccountCommand
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.state import Account
from services.accounts.topology import COMMANDS, TOPOLOGY
from shared.dev.worker import Worker, free_port
from shared.es.decider import fold
from shared.es.errors import DomainError
from shared.kafka.embedded import EmbeddedKafka
from shared.kafka.history import History
from shared.kafka.producer import producer_config
from shared.kafka.provision import provision
from shared.settings import Settings
from tests.pipelines.conftest import latest, read_records

ACCOUNTS = table_of("accounts", "accounts")
CHANGELOG = ACCOUNTS.changelog
NOON = datetime(1997, 1, 18, 12, tzinfo=UTC)
_APP = "services.accounts.app"
DEADLINE_S = 300.0  # a machine that is busy with other things has its time

Asked = Sequence[tuple[str, AccountCommand]]
Fact = tuple[int, Account]
"""Sequence and state."""


def prove(histories: Mapping[str, Sequence[AccountCommand]], spark: Any, root: Path) -> None:
    """What is folded here, the live table over HTTP, its changelog and Spark are the same in the end."""
    first, second = _halves(histories)
    with _running(root, spark) as accounts:
        accounts.start("tests.pipelines.first_accounts")
        accounts.ask(first)
        accounts.await_decided()
        accounts.worker.kill()
        accounts.ask(second)
        accounts.start(failpoint="after_offsets:kill:1")
        _await(lambda: accounts.worker.exit_code, lambda code: code is not None)
        accounts.start()
        accounts.agree()


def _halves(histories: Mapping[str, Sequence[AccountCommand]]) -> tuple[Asked, Asked]:
    """All accounts in turns."""
    turns = [[(name, command) for command in history] for name, history in histories.items()]
    asked = [each for turn in zip_longest(*turns) for each in turn if each]
    return asked[: len(asked) // 2], asked[len(asked) // 2 :]


def _folded(asked: Asked) -> dict[str, Fact]:
    """Every account by the domain alone."""
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
        self.history = History(bootstrap)
        self.stores = root / "stores"
        self._log = root / "logs" / "accounts.log"
        self._port = free_port()
        self._spark = spark
        self._settings = Settings(bootstrap=bootstrap, data_dir=self.stores, session_timeout_s=6, log_format="json")
        self._asked: list[tuple[str, AccountCommand]] = []
        self.worker = self._new_worker()
        provision([TOPOLOGY], self._settings)

    def start(self, module: str = _APP, failpoint: str | None = None) -> None:
        """A worker in the place of the one before; with a failpoint it will be killed there."""
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
        ends = self.history.settled_ends(COMMANDS.name)
        _await(lambda: self.history.positions(TOPOLOGY.group).get(COMMANDS.name), lambda found: found == ends)

    def agree(self) -> None:
        """All four: the fold here, the changelog, the answers over HTTP, and Spark."""
        self.await_decided()
        expected = _folded(self._asked)
        assert _facts(latest(read_records(self.bootstrap, CHANGELOG))) == expected
        verdict = parity.audit(self._spark, self.history, ACCOUNTS, url=self.worker.url)
        assert (
            str(verdict) == f"{len(expected):,} of {len(expected):,} accounts agree ({len(expected):,} also over HTTP)"
        )


def _facts(rows: Mapping[bytes, bytes | None]) -> dict[str, Fact]:
    decoded = {key.decode(): DECIDER.row_codec.decode(value or b"") for key, value in rows.items()}
    return {name: (row.sequence, row.state) for name, row in decoded.items()}


def _await(look: Callable[[], Any], good: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not good(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@contextmanager
def _running(root: Path, spark: Any) -> Iterator[_Accounts]:
    with EmbeddedKafka(root / "kafka", root / "logs") as kafka:
        accounts = _Accounts(kafka.bootstrap, root, spark)
        try:
            yield accounts
        finally:
            accounts.worker.kill()
