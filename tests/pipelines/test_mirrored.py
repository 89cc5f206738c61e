"""On a second cluster all that was mirrored is there and takes effect once, however the first cluster ended."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pipelines import consistency, mirrored
from pipelines.archive import Archive
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable, table_of
from pipelines.cli import cli
from pipelines.mirrored import MirroredRebuild
from services.accounts.domain.commands import Charge, OpenAccount
from services.accounts.domain.decide import DECIDER
from services.accounts.topology import TOPOLOGY
from shared.dev.embedded import EmbeddedKafka
from shared.dev.worker import Worker, faust_command
from shared.domain.outcomes import OUTCOME_CODEC, key_of, row_of
from shared.domain.row import UNKNOWN_BODY, Outcome
from shared.kafka.brokers import Brokers, BrokersUnavailable, GroupIsLive
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.operations.mirror import Mirror, mirror_properties, mirrored_topics
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.declaration import Service
from shared.topology.timer import Timer
from shared.topology.topics import Topic, Topology
from tests.conftest import WORKER_SETTINGS, accounts_stack
from tests.pipelines.conftest import FIRST_DAY, PARTITIONS, latest, next_version, read_records
from tests.waiting import Deadline

CHARGE = Charge(amount_cents=500)
CLIENTS = 4
ACCOUNTS = 40
CHARGES_EACH = 300  # so that no account gets more commands than its row remembers
MIRRORED_BEFORE_THE_END = 100
MIRROR_S = 120.0
ANSWER_S = 60.0


def put_commands(ledger: Any, *commands: tuple[str, str], topic: str = "") -> None:
    """Writes commands as if mirrored, by default to the accounts. commands: account and command id of each."""
    producer = Producer(producer_config(ledger.bootstrap))
    for account, command_id in commands:
        envelope = DECIDER.command_codec.wrap(CHARGE, command_id=command_id, aggregate_id=account, issued_at=FIRST_DAY)
        value, key = DECIDER.command_codec.encode(envelope), account.encode()
        producer.produce(topic or ledger.table.table.source.name, value, key, partition_of(key, PARTITIONS))
    assert producer.flush(30) == 0


def rebuilt(
    spark: Any, ledger: Any, work: Path, archive: Archive | None = None
) -> tuple[dict[str, int], dict[str, Any]]:
    """(the next command offset of each account's partition, each account's row), for ann, bob and joe."""
    topology = run_rebuild(spark, ledger.bootstrap, ledger.table, work, archive)
    rows = latest(read_records(ledger.bootstrap, topology.changelog(ledger.table.table).name))
    decoded = {key.decode(): DECIDER.row_codec.decode(value) for key, value in rows.items() if value}
    return next_offsets(ledger.bootstrap, topology, ledger.table.table.source.name), decoded


def run_rebuild(spark: Any, bootstrap: str, table: FoldedTable, work: Path, archive: Archive | None = None) -> Topology:
    build = MirroredRebuild(spark, Brokers(bootstrap), [table], 2, work, lambda _: archive)
    provision([build.topology], Settings(bootstrap=bootstrap))
    build.run(lambda *_: None)
    return build.topology


def outcomes_in(ledger: Any) -> dict[bytes, int]:
    """By key, the sequences that the next version knows of."""
    topology = ledger.table.topology.next_version
    found = latest(read_records(ledger.bootstrap, topology.changelog(topology.outcomes).name))
    return {key: OUTCOME_CODEC.decode_whole(value).sequence for key, value in found.items() if value}


def next_offsets(bootstrap: str, topology: Topology, topic: str) -> dict[str, int]:
    positions = Brokers(bootstrap).positions(topology.group)[topic]
    return {name: positions[partition_of(name.encode(), PARTITIONS)] for name in ("ann", "bob", "joe")}


def test_a_row_is_the_fold_of_its_events_and_knows_their_commands(spark: Any, ledger: Any, tmp_path: Path) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", CHARGE), ("bob", OpenAccount()), ("ann", CHARGE))
    ledger.put_row("bob", None)  # rows do not matter, whether lost or ahead
    _, rows = rebuilt(spark, ledger, tmp_path)
    assert rows["ann"].state == ledger.rows["ann"].state
    assert rows["ann"].sequence == 3
    assert rows["ann"].offset == rows["bob"].offset == -1
    assert rows["ann"].outcomes == rows["bob"].outcomes == {}
    caused = {("ann", "c0"): 1, ("ann", "c1"): 2, ("ann", "c3"): 3, ("bob", "c2"): 1}
    assert outcomes_in(ledger) == {key_of(*command): sequence for command, sequence in caused.items()}


def test_commands_resume_after_the_last_one_that_led_to_an_event(spark: Any, ledger: Any, tmp_path: Path) -> None:
    assert len({partition_of(name, PARTITIONS) for name in (b"ann", b"bob", b"joe")}) == PARTITIONS
    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()), ("bob", CHARGE))
    put_commands(ledger, ("ann", "c0"), ("ann", "lost with its event"), ("ann", "c0"))  # the third is a repeat
    put_commands(ledger, ("bob", "refused"), ("bob", "c1"))  # c2's event arrived, c2 did not
    put_commands(ledger, ("joe", "nothing was decided for him"))
    positions, _ = rebuilt(spark, ledger, tmp_path)
    assert positions == {"ann": 1, "bob": 2, "joe": 0}


def test_commands_resume_after_all_that_were_decided_before_a_dead_letter_was_retried(
    spark: Any, ledger: Any, tmp_path: Path
) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", CHARGE))
    put_commands(ledger, ("ann", "c1"), ("ann", "refused"), ("ann", "c0"), ("ann", "never decided"))
    positions, _ = rebuilt(spark, ledger, tmp_path)
    assert positions["ann"] == 3


def test_after_a_mirror_the_commands_of_events_are_known_by_their_ids() -> None:
    columns = "partition int, key binary, command string, sequence long, at long"
    ((partition, key, value, at),) = rows_of(mirrored._decided(as_batches([(2, b"ann", "c0", 7, 99)], columns)))
    assert (partition, key, at) == (2, key_of("ann", "c0"), 99)
    assert OUTCOME_CODEC.decode_whole(value) == row_of(Outcome("c0", 7, None, None, UNKNOWN_BODY), 99, -1)


def test_what_a_policy_would_have_sent_before_it_began_is_not_sent(spark: Any) -> None:
    def sent(policy: int, partition: int, offset: int, known: bool) -> tuple[Any, ...]:
        return policy, partition, f"a-{offset}".encode(), offset, 0, "t", b"k", known or None

    places = [(0, 0, False), (0, 1, True), (0, 2, False), (1, 0, False)]  # partition, offset, known
    rows = [sent(policy, *place) for policy in (0, 1) for place in places]
    names = "policy int, partition int, source binary, offset long, index int, topic string, key binary, known boolean"
    found = mirrored._missing(spark.createDataFrame(rows, names), late=[1])
    assert {(row.policy, row.partition, row.offset) for row in found.collect()} == {
        (0, 0, 0),
        (0, 0, 2),
        (0, 1, 0),
        (1, 0, 2),
    }


def test_commands_that_retention_has_removed_do_not_make_later_ones_decided(
    spark: Any, ledger: Any, tmp_path: Path
) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", CHARGE), ("bob", OpenAccount()))
    put_commands(ledger, ("ann", "c1"), ("ann", "never decided"), ("bob", "never decided"))  # c0 and c2 are gone
    positions, _ = rebuilt(spark, ledger, tmp_path)
    assert positions == {"ann": 1, "bob": 0, "joe": 0}


def test_accounts_may_use_the_same_idempotency_key(spark: Any, ledger: Any, tmp_path: Path) -> None:
    partition = partition_of(b"ann", PARTITIONS)
    neighbour = next(name for name in map(str, range(99)) if partition_of(name.encode(), PARTITIONS) == partition)
    ledger.decide(("ann", OpenAccount()))
    put_commands(ledger, (neighbour, "c0"), ("ann", "c0"), ("ann", "never decided"))
    positions, _ = rebuilt(spark, ledger, tmp_path)
    assert positions["ann"] == 2


def test_commands_resume_after_those_of_events_that_only_the_archive_has(
    spark: Any, ledger: Any, tmp_path: Path
) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", CHARGE))
    put_commands(ledger, ("ann", "c0"), ("ann", "c1"), ("ann", "never decided"))
    kept = Archive(spark, str(tmp_path / "archive"), "accounts", ledger.table.events.name)
    kept.extend(Brokers(ledger.bootstrap))
    ledger.forget()
    positions, rows = rebuilt(spark, ledger, tmp_path, kept)
    assert positions["ann"] == 2
    assert rows["ann"].sequence == 2


def test_a_worker_of_the_old_version_is_noticed(
    spark: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ledger.table.topology.group
    ledger.decide(("ann", OpenAccount()))
    monkeypatch.setattr(Brokers, "members", lambda _, asked: ("worker",) if asked == group else ())
    with pytest.raises(GroupIsLive, match=f"workers of {group} are running"):
        rebuilt(spark, ledger, tmp_path)


def test_timers_go_on_after_the_last_one_that_arrived_here_or_at_a_neighbour(
    spark: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ledger.table.topology
    timers = Topic(f"{mine.service}.timers.v1")
    neighbours = Topology("mail", (Topic("mail.commands.v1"),), partitions=PARTITIONS)
    table = replace(ledger.table, topology=replace(mine, topics=(*mine.topics, timers)))
    declared = Service(table.topology, timers=[Timer(source=timers, target=neighbours.topics[0], delay_s=1.0)])
    monkeypatch.setattr(mirrored, "service_in", lambda _: declared)
    provision([table.topology, neighbours], Settings(bootstrap=ledger.bootstrap))
    ledger.decide(("ann", OpenAccount()))
    put_commands(ledger, ("ann", "t1"), ("ann", "t2"), ("bob", "t3"), ("bob", "t4"), ("joe", "t5"), topic=timers.name)
    put_commands(ledger, ("ann", "t1"))
    put_commands(ledger, ("bob", "t3"), ("bob", "t4"), topic=neighbours.topics[0].name)
    topology = run_rebuild(spark, ledger.bootstrap, table, tmp_path)
    assert next_offsets(ledger.bootstrap, topology, timers.name) == {"ann": 1, "bob": 2, "joe": 0}


@dataclass
class Clients:
    """Each client charges one account after the other, and repeats a charge until it is answered or told to end."""

    url: str
    sent: dict[str, str] = field(default_factory=dict)  # account by command id
    answered: dict[str, tuple[int, float]] = field(default_factory=dict)  # sequence and time by command id
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        for number in range(CHARGES_EACH):
            command_id, account = f"{client}-{number}", f"a{(client + number * CLIENTS) % ACCOUNTS}"
            self.charge(account, command_id)

    def charge(self, account: str, command_id: str) -> None:
        while not self._ending.is_set() and command_id not in self.answered:
            self.sent[command_id] = account
            if (sequence := charge(self.url, account, command_id)) is not None:
                self.answered[command_id] = sequence, time.monotonic()

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


def charge(url: str, account: str, command_id: str) -> int | None:
    """The account's sequence after the charge; None without an answer."""
    with suppress(httpx.TransportError):
        headers = {"Idempotency-Key": command_id}
        done = httpx.post(f"{url}/accounts/{account}/charges", json={"amount_cents": 1}, headers=headers, timeout=5)
        if done.status_code == httpx.codes.CREATED:
            sequence: int = done.json()["sequence"]
            return sequence
    return None


def charged(url: str, account: str, command_id: str) -> int:
    deadline = Deadline(ANSWER_S)
    while (sequence := charge(url, account, command_id)) is None:
        deadline.check(f"{command_id} is not answered")
    return sequence


def mirrored_events(bootstrap: str) -> list[Any]:
    return [DECIDER.event_codec.decode(each.value) for each in read_records(bootstrap, "accounts.events.v1")]


def await_events(bootstrap: str, count: int) -> None:
    deadline = Deadline(MIRROR_S)
    mirrored = 0
    while mirrored < count:
        with suppress(BrokersUnavailable):  # the topic does not exist yet
            mirrored = len(read_records(bootstrap, "accounts.events.v1"))
        deadline.check(f"{mirrored} events were mirrored, and no more")


def abort_an_event(bootstrap: str) -> None:
    """Leaves what a worker leaves that died in its transaction: a record that nobody may see."""
    producer = Producer(producer_config(bootstrap, transactional_id="died") | {"log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("accounts.events.v1", b"never happened", b"a0", partition_of(b"a0", TOPOLOGY.partitions))
    producer.flush(30)
    producer.abort_transaction(30)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("behind", [0, 20])
def test_services_go_on_where_the_mirror_was_when_the_first_cluster_was_lost(
    spark: Any, tmp_path: Path, behind: int
) -> None:
    """behind: how many answers, at least, the mirror misses."""
    first = accounts_stack(tmp_path / "first", workers=1, command=faust_command)
    risky = {"unclean.leader.election.enable": "true"}  # a default of the second cluster that the topics must not get
    with EmbeddedKafka(tmp_path / "second" / "kafka", tmp_path / "second" / "logs", 1, risky) as second, first:
        topics = mirrored_topics([TOPOLOGY])
        with Mirror(mirror_properties(topics, first.bootstrap, second.bootstrap, 1), tmp_path / "mirror") as mirror:
            url = first.workers[0].url
            for number in range(ACCOUNTS):
                httpx.post(
                    f"{url}/accounts/a{number}", headers={"Idempotency-Key": f"open-{number}"}
                ).raise_for_status()
            abort_an_event(first.bootstrap)
            await_events(second.bootstrap, ACCOUNTS)
            clients = Clients(url)
            clients.start()
            await_events(second.bootstrap, MIRRORED_BEFORE_THE_END)
            if behind:
                mirror.stop()
            for number in range(behind):
                clients.charge(f"a{number}", f"late-{number}")
            first.kafka.kill(1)
            ended = time.monotonic()
            first.workers[0].kill()
            clients.end()
        mirrored = {event.correlation_id: event.sequence for event in mirrored_events(second.bootstrap)}
        lost = {command: at for command, (_, at) in clients.answered.items() if command not in mirrored}
        lag_ms = round(1000 * (ended - min(lost.values()))) if lost else 0
        assert len(lost) >= behind
        sys.stdout.write(f"{len(clients.answered)} answered, {len(lost)} not mirrored, the first {lag_ms} ms old\n")
        assert all(mirrored[c] == s for c, (s, _) in clients.answered.items() if c in mirrored)

        options = ["--mirrored", "--version", "2", "--bootstrap", second.bootstrap, "--work", str(tmp_path / "work")]
        done = CliRunner().invoke(cli, ["rebuild", "accounts", *options], catch_exceptions=False)
        assert done.output.splitlines()[-1] == f"accounts-v2: {ACCOUNTS} rows are ready; start its workers"

        here = {"bootstrap": second.bootstrap, "data_dir": tmp_path / "second" / "stores"}
        there = WORKER_SETTINGS.model_copy(update=here)
        successor = Worker("accounts", "9", there, tmp_path / "second" / "logs" / "accounts.log", next_version)
        successor.start()
        try:
            again = {command: charged(successor.url, account, command) for command, account in clients.sent.items()}
            assert all(again[command] == mirrored[command] for command in again.keys() & mirrored.keys())
            for account, charges in Counter(clients.sent.values()).items():
                found = httpx.get(f"{successor.url}/accounts/{account}").json()
                assert (found["balance_cents"], found["sequence"]) == (charges, charges + 1)
        finally:
            successor.stop()
        causes = Counter(event.correlation_id for event in mirrored_events(second.bootstrap))
        assert set(causes.values()) == {1}
        assert causes.keys() >= clients.sent.keys()
        table = replace(table_of("accounts", "accounts"), topology=replace(TOPOLOGY, version=2))
        assert (
            str(consistency.check(spark, Brokers(second.bootstrap), table))
            == f"{ACCOUNTS} of {ACCOUNTS} accounts agree"
        )
