"""A rebuild writes what the engine would have written, whole or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from pipelines import consistency, folds
from pipelines import parked as parked_rows
from pipelines.archive import AnotherLog, Archive
from pipelines.catalog import table_of
from pipelines.cli import cli
from pipelines.events import HistoryIncomplete
from pipelines.rebuild import _ROWS, AlreadyBuilt, HistoryBroken, HistoryMoved, NothingBefore, Rebuild, begins_of
from pipelines.sinks import FolderNotShared
from pipelines.sources import RECORDS, Flow
from services.accounts.domain.commands import Charge, OpenAccount, Pay
from services.accounts.service import SERVICE
from services.accounts.topology import TOPOLOGY
from shared.dev.stack import Stack
from shared.dev.stages import StageFailed
from shared.dev.worker import Worker, faust_command
from shared.domain.outcomes import key_of
from shared.domain.row import Outcome
from shared.kafka.brokers import Brokers, GroupIsLive
from shared.kafka.murmur2 import partition_of
from shared.operations.provision import provision
from shared.operations.versions import Step, Versions
from shared.parking.parked import BEGINS_ID, NOTE_ID, PARKED_CODEC, STOOD, SUPERSEDED_ID, ended_id, noted_in
from shared.runtime.settings import Settings
from shared.topology.policy import Policy, Send
from shared.topology.publication import Publication
from shared.topology.topics import Topic
from tests.accounts.domain.events import AccountOpened
from tests.conftest import accounts_stack
from tests.engine.parked import ask, await_letter, send
from tests.engine.publishing_accounts import Charged
from tests.faults.load import command
from tests.pipelines.conftest import PARTITIONS, next_version, read_records
from tests.waiting import eventually

CHARGE = Charge(amount_cents=500)
COMMANDS_READ = dict.fromkeys(range(PARTITIONS), 7)


@pytest.fixture
def brokers(ledger: Any) -> Brokers:
    return Brokers(ledger.bootstrap)


@pytest.fixture
def rebuild(spark: Any, ledger: Any, brokers: Brokers, tmp_path: Path) -> Rebuild:
    """The rebuild of a service that was stopped and has positions."""
    old = ledger.table.topology
    brokers.commit(old.group, {ledger.table.table.source.name: COMMANDS_READ})
    build = Rebuild(spark, brokers, [ledger.table], 2, tmp_path / "work")
    provision([build.topology], Settings(bootstrap=ledger.bootstrap))
    return build


def rows(brokers: Brokers, changelog: str) -> dict[tuple[int, bytes], bytes | None]:
    """The last value of each partition and key."""
    return {(each.partition, each.key): each.value for each in read_records(brokers.bootstrap, changelog)}


def ignore(*_: object) -> None:
    pass


@pytest.mark.long  # in short, random histories
def test_the_same_code_gives_the_same_bytes_in_the_same_places(
    spark: Any, ledger: Any, brokers: Brokers, rebuild: Rebuild
) -> None:
    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()), ("éva ☃", OpenAccount()))
    ledger.decide(("ann", CHARGE), ("bob", Pay(amount_cents=1)), ("nobody", CHARGE))
    ledger.decide_but_abort(("ann", CHARGE))
    seen: list[Any] = []
    assert rebuild.run(lambda *progress: seen.append(progress)) == 4
    assert [(count, total) for _, count, total, _ in seen] == [(1, 1)]
    assert sum(done.events for done, *_ in seen) == 4
    old, new = ledger.table, replace(ledger.table, topology=rebuild.topology)
    assert new.changelog == f"{old.topology.service}-v2-accounts-changelog"
    assert rows(brokers, new.changelog) == rows(brokers, old.changelog)
    assert brokers.positions(rebuild.topology.group) == {old.table.source.name: COMMANDS_READ}
    assert str(consistency.check(spark, brokers, new)) == "4 of 4 accounts agree"
    with pytest.raises(AlreadyBuilt):
        rebuild.run(ignore)


def test_outcomes_are_copied_that_count_yet(ledger: Any, brokers: Brokers, rebuild: Rebuild) -> None:
    old, new = ledger.table.topology, rebuild.topology
    assert new.outcomes is not None
    newest = 10 * old.outcomes.kept_ms
    ledger.decide(("ann", OpenAccount()))
    for name, at in (("forgotten", newest - old.outcomes.kept_ms - 1), ("known", newest - 7), ("newest", newest)):
        ledger.put_outcome("ann", Outcome(name, 1, None, None, "f"), at)
    rebuild.run(ignore)
    kept = rows(brokers, new.changelog(new.outcomes).name)
    assert {key for _, key in kept} == {key_of("ann", "known"), key_of("ann", "newest")}
    assert kept.items() <= rows(brokers, old.changelog(old.outcomes).name).items()


@pytest.mark.long  # in short, a view of such events, in test_views
def test_the_index_of_a_history_begins_anew_and_policies_of_it_go_on(
    spark: Any, ledger: Any, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.rebuild.answering_in", lambda _: [policy_of(ledger.table.events, "answer")])
    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()))
    events = ledger.table.events
    table = replace(ledger.table, topology=replace(ledger.table.topology, history=events))
    brokers.commit(table.topology.group, {table.table.source.name: COMMANDS_READ, events.name: COMMANDS_READ})
    build = Rebuild(spark, brokers, [table], 2, tmp_path / "work")
    provision([build.topology], Settings(bootstrap=ledger.bootstrap))
    build.run(ignore)
    assert brokers.positions(build.topology.group) == {
        table.table.source.name: COMMANDS_READ,
        events.name: dict.fromkeys(range(PARTITIONS), 0),
    }
    parked = rows(brokers, build.topology.changelog(build.topology.parked).name)
    for number, stands in COMMANDS_READ.items():
        note = PARKED_CODEC.decode(parked[number, BEGINS_ID.encode()] or b"").state
        assert noted_in(note) == {events.name: {STOOD: stands, "policy.answer": stands}}


def policy_of(source: Topic, name: str, *, from_start: bool = False) -> Policy:
    def react(_: object) -> list[Send]:
        return []

    react.__name__ = name
    return Policy(react, source=source, events=[AccountOpened], commands={}, from_start=from_start)


def test_policies_of_a_next_version_begin_where_the_old_one_stands_or_at_the_present() -> None:
    again, first, elsewhere = (f"{each}.events.v1" for each in "abc")
    policies: list[Policy | Publication] = [
        policy_of(Topic(again), "old"),
        policy_of(Topic(again), "slow"),
        policy_of(Topic(again), "process", from_start=True),
        policy_of(Topic(first), "new"),
        policy_of(Topic(first), "new_process", from_start=True),
        policy_of(Topic(elsewhere), "other"),
        Publication(
            lambda _: None,
            source=Topic(again),
            events=[AccountOpened],
            topic=Topic("a.public.v1"),
            public=[Charged],
        ),
    ]
    found = begins_of(
        policies,
        noted={again: {"policy.slow": 8}, "gone.events.v1": {"policy.gone": 9}},
        stands={again: 5, "commands": 3},
        goes_on={again: 0, first: 0, "commands": 3},
        ends={first: 4},
    )
    at = {STOOD: 5, "policy.old": 5, "policy.slow": 8, "policy.process": 5, "publication.a.public.v1": 5}
    assert found == {again: at, first: {"policy.new": 4}}


def test_nothing_is_past_of_a_topic_that_was_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Since the old version has read it, in one of two partitions."""
    facts, there = Topic("a.events.v1"), {0: 0, 1: 0}
    brokers = SimpleNamespace(
        starts=lambda _: there, settled_ends=lambda _: {0: 9, 1: 9}, topic_ids=lambda _: {"new"}, positions=lambda _: {}
    )
    build = Rebuild(cast(Any, None), cast(Any, brokers), [table_of("accounts", "accounts")], 2, tmp_path)
    monkeypatch.setattr("pipelines.rebuild.answering_in", lambda _: [policy_of(facts, "answer")])
    noted = {0: {facts.name: "former"}, 1: {facts.name: "new"}}
    monkeypatch.setattr("pipelines.rebuild.noted_topics", lambda *_: noted)
    plan = cast(Any, SimpleNamespace(positions={facts.name: there}))
    assert build._unread_ends(plan) == {facts.name: {0: 0, 1: 9}}


def test_a_broken_history_stops_a_rebuild_and_names_the_place(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()))
    ledger.put_event("ann", ledger.event("ann", sequence=3))
    ledger.put_row("bob", ledger.encoded_row("bob").replace(b'"sequence":1', b'"sequence":2'))
    with pytest.raises(HistoryBroken) as broken:
        rebuild.run(ignore)
    assert "ann: at offset 2: sequence 3 follows 1 (ledger" in str(broken.value)
    assert "bob: 1 events, but its row is at sequence 2" in str(broken.value)
    monkeypatch.setattr("pipelines.rebuild._PROBLEMS_SHOWN", 1)
    with pytest.raises(HistoryBroken, match=r"^.+\nand 1 more$"):
        rebuild.run(ignore)
    assert brokers.positions(rebuild.topology.group) == {}
    assert rows(brokers, rebuild.topology.changelog(ledger.table.table).name) == {}


def test_a_rebuild_that_died_continues_with_what_it_had_folded(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()), ("ann", CHARGE))
    with monkeypatch.context() as patched:
        patched.setattr(Rebuild, "_write", None)
        with pytest.raises(TypeError):
            rebuild.run(ignore)
    assert brokers.positions(rebuild.topology.group) == {}
    with monkeypatch.context() as patched:
        patched.setattr(Rebuild, "_rows", None)  # nothing is folded twice
        assert rebuild.run(ignore) == 2
    assert rows(brokers, rebuild.topology.changelog(ledger.table.table).name) == rows(brokers, ledger.table.changelog)


@pytest.mark.long  # in short, a rebuild that died when all was folded, above
def test_a_rebuild_that_died_as_it_folded_continues_with_the_other_partitions(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, asked = folds.states, list[set[int]]()

    def dying(records: Flow, table: Any) -> Flow:
        def die(batches: Any) -> Any:
            for batch in batches:
                if 2 in batch["partition"].to_pylist():
                    raise RuntimeError("this task dies")
                yield batch

        return states(records.then(die, RECORDS), table)

    def asking(self: Rebuild, plan: Any, table: Any, numbers: Any) -> Flow:
        asked.append({*numbers})
        return folded(self, plan, table, numbers)

    folded = Rebuild._folded
    ledger.decide(*((name, OpenAccount()) for name in ("ann", "bob", "joe")), ("ann", CHARGE))
    monkeypatch.setattr(Rebuild, "_folded", asking)
    with monkeypatch.context() as patched:
        patched.setattr(folds, "states", dying)
        with pytest.raises(PySparkException, match="this task dies"):
            rebuild.run(ignore)
    assert rebuild.run(ignore) == 3
    assert asked[0] == {0, 1, 2}
    assert 2 in asked[1] < asked[0]
    assert rows(brokers, rebuild.topology.changelog(ledger.table.table).name) == rows(brokers, ledger.table.changelog)


@pytest.mark.long  # in short, outcomes that count yet are copied
def test_parked_records_wait_in_the_next_version_too(spark: Any, ledger: Any, brokers: Brokers, tmp_path: Path) -> None:
    ledger.decide(("ann", OpenAccount()))
    table = replace(ledger.table, topology=replace(ledger.table.topology, history=ledger.table.events))
    topology = table.topology
    brokers.commit(topology.group, {table.table.source.name: COMMANDS_READ})
    provision([topology], Settings(bootstrap=ledger.bootstrap))
    waits = ["accounts/1/ann", "policy.send/2/ann"]
    for row_id in [*waits, "accounts/1/released", "chapters/0/read again"]:
        ledger.park(row_id)
    ledger.release("accounts/1/released")
    build = Rebuild(spark, brokers, [table], 2, tmp_path / "work")
    provision([build.topology], Settings(bootstrap=ledger.bootstrap))
    build.run(ignore)
    parked = rows(brokers, topology.changelog(topology.parked).name)
    copied = rows(brokers, build.topology.changelog(build.topology.parked).name)
    assert copied == {place: row for place, row in parked.items() if place[1].decode() in waits}
    assert [place[0] for place in sorted(copied)] == [1, 2]


def test_what_topics_the_old_version_was_made_from_is_not_noted_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows count the offsets of those that are there now."""
    ids = (NOTE_ID, BEGINS_ID, SUPERSEDED_ID, ended_id("accounts"), "accounts/0/ann")
    rows = [(0, each.encode(), b"{}") for each in ids]
    monkeypatch.setattr(parked_rows, "read_all", lambda *_: rows)
    assert [each.key for each in parked_rows.parked_records(cast(Any, None), TOPOLOGY)] == [b"accounts/0/ann"]


def test_rows_folded_by_other_code_are_replaced(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()))
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.rebuild.code_digest", lambda package: f"{package} with a fault")
        patched.setattr(
            Rebuild,
            "_rows",
            lambda self, *_: Flow(self._spark.createDataFrame([(0, b"gone", b"row", 1, None)], _ROWS)),
        )
        patched.setattr(Rebuild, "_records", None)
        with pytest.raises(TypeError):
            rebuild.run(ignore)
    assert rebuild.run(ignore) == 1
    assert rows(brokers, rebuild.topology.changelog(ledger.table.table).name) == rows(brokers, ledger.table.changelog)


@pytest.mark.long  # in short, one that ran while a view was emptied
def test_a_worker_of_the_old_version_that_ran_during_a_rebuild_is_noticed(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide_on(*_: object) -> None:
        ledger.decide(("ann", CHARGE))
        brokers.commit(ledger.table.topology.group, {ledger.table.table.source.name: {0: next(positions)}})

    ledger.decide(("ann", OpenAccount()))
    positions = itertools.count(COMMANDS_READ[0] + 1)
    changelog = rebuild.topology.changelog(ledger.table.table).name
    with pytest.raises(HistoryMoved):
        rebuild.run(decide_on)
    assert rows(brokers, changelog) == {}
    write = Rebuild._write
    with monkeypatch.context() as patched:
        patched.setattr(Rebuild, "_write", lambda *table: decide_on(write(*table)))
        with pytest.raises(HistoryMoved):
            rebuild.run(ignore)
    assert brokers.positions(rebuild.topology.group) == {}
    assert rebuild.run(ignore) == 1
    assert rows(brokers, changelog) == rows(brokers, ledger.table.changelog)


@pytest.mark.long  # in short, the simulation
def test_a_worker_of_the_old_version_that_joins_at_the_last_moment_stops_a_rebuild(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()))
    old, new = ledger.table.topology, rebuild.topology
    provision([old], Settings(bootstrap=ledger.bootstrap))
    worker = Consumer({"bootstrap.servers": ledger.bootstrap, "group.id": old.group})
    commit_with = Brokers.commit_with

    def joined(*arguments: Any) -> None:
        worker.subscribe([ledger.table.table.source.name])
        eventually(lambda: (worker.poll(0.1), brokers.members(old.group))[1])
        commit_with(*arguments)

    with monkeypatch.context() as patched, closing(worker):
        patched.setattr(Brokers, "commit_with", joined)
        with pytest.raises(GroupIsLive):
            rebuild.run(ignore)
    assert brokers.positions(new.group) == {}
    parked = old.changelog(old.parked).name
    assert set(rows(brokers, parked).values()) == {None}
    rebuild.run(ignore)
    superseded = {(number, SUPERSEDED_ID.encode()) for number in range(PARTITIONS)}
    assert {place for place, row in rows(brokers, parked).items() if row} == superseded
    assert rows(brokers, new.changelog(new.parked).name) == {}


@pytest.mark.long  # in short, policies of a next version, above
@pytest.mark.parametrize("fails", [False, True])
def test_the_old_version_may_go_on_whatever_the_neighbours_do(
    ledger: Any, brokers: Brokers, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A policy of the new version reads a topic that is not there yet, or what is to be noted cannot be found."""
    answer = policy_of(Topic("absent.events.v1"), "answer")
    monkeypatch.setattr("pipelines.rebuild.answering_in", lambda _: [answer])
    old = ledger.table.topology
    provision([old], Settings(bootstrap=ledger.bootstrap))
    ledger.decide(("ann", OpenAccount()))
    if fails:
        monkeypatch.setattr("pipelines.rebuild.noted_begins", None)
        with pytest.raises(TypeError):
            rebuild.run(ignore)
        assert brokers.positions(rebuild.topology.group) == {}
        assert set(rows(brokers, old.changelog(old.parked).name).values()) == {None}
    else:
        assert rebuild.run(ignore) == 1


@pytest.mark.usefixtures("executors_elsewhere")
def test_rows_that_stayed_on_an_executor_are_missed(ledger: Any, brokers: Brokers, rebuild: Rebuild) -> None:
    ledger.decide(("ann", OpenAccount()))
    with pytest.raises(FolderNotShared, match="0 of 1 rows that executors wrote are in "):
        rebuild.run(ignore)
    assert brokers.positions(rebuild.topology.group) == {}


def test_records_that_retention_removed_are_missed(ledger: Any, rebuild: Rebuild) -> None:
    ledger.decide(("ann", OpenAccount()))
    ledger.forget()
    with pytest.raises(HistoryIncomplete, match="not in an archive that was named"):
        rebuild.run(ignore)


@pytest.mark.long  # the proof covers it in the usual run
def test_a_rebuild_reads_the_archive_once_and_the_tail_of_the_topic(
    spark: Any, ledger: Any, brokers: Brokers, rebuild: Rebuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(spark, str(tmp_path / "archive"), "accounts", ledger.table.events.name)
    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()), ("ann", CHARGE))
    archive.extend(brokers)
    ledger.forget()
    ledger.decide(("bob", CHARGE), ("eve", OpenAccount()))
    with pytest.raises(HistoryIncomplete):
        rebuild.run(ignore)
    reads, records = itertools.count(1), Archive.records
    monkeypatch.setattr(Archive, "records", lambda self: next(reads) and records(self))
    build = Rebuild(spark, brokers, [ledger.table], 2, tmp_path / "work", archive=lambda _: archive)
    assert build.run(ignore) == 3
    assert next(reads) == 2  # whatever the number of partitions
    assert rows(brokers, build.topology.changelog(ledger.table.table).name) == rows(brokers, ledger.table.changelog)


@pytest.mark.long  # in short, rows that other code has folded
def test_what_was_folded_from_another_archive_is_folded_again(
    spark: Any, ledger: Any, brokers: Brokers, rebuild: Rebuild, tmp_path: Path
) -> None:
    wrong, right = (Archive(spark, str(tmp_path / name), "accounts", ledger.table.events.name) for name in "ab")
    ledger.decide(("ann", OpenAccount()), ("ann", CHARGE))
    for archive in (wrong, right):
        archive.extend(brokers)
    wrong.table().delete("value LIKE '%opened%'")
    ledger.forget()
    with pytest.raises(HistoryBroken):
        Rebuild(spark, brokers, [ledger.table], 2, tmp_path / "work", archive=lambda _: wrong).run(ignore)
    assert Rebuild(spark, brokers, [ledger.table], 2, tmp_path / "work", archive=lambda _: right).run(ignore) == 1


@pytest.mark.usefixtures("rebuild")
def test_an_archive_of_a_topic_that_was_made_again_is_in_no_row(
    spark: Any, ledger: Any, brokers: Brokers, tmp_path: Path
) -> None:
    archive = Archive(spark, str(tmp_path / "archive"), "accounts", ledger.table.events.name)
    ledger.decide(("ann", OpenAccount()), *[("ann", CHARGE)] * 3)
    archive.extend(brokers)
    ledger.make_again()
    ledger.rows.clear()
    ledger.decide(("ann", OpenAccount()))
    ledger.forget()
    ledger.decide(*[("ann", Charge(amount_cents=1))] * 4)  # only the last is behind what is archived
    build = Rebuild(spark, brokers, [ledger.table], 2, tmp_path / "work", archive=lambda _: archive)
    with pytest.raises(AnotherLog):
        build.run(ignore)
    assert brokers.positions(build.topology.group) == {}


def test_a_rebuild_needs_positions_to_start_from(spark: Any, ledger: Any, brokers: Brokers, tmp_path: Path) -> None:
    with pytest.raises(NothingBefore, match="never committed a position"):
        Rebuild(spark, brokers, [ledger.table], 2, tmp_path).run(ignore)
    run = CliRunner().invoke(cli, ["rebuild", "accounts"])
    assert "raise `version` in services/accounts/topology.py first" in str(run.exception)


def test_a_rebuild_needs_the_changelog_of_the_version_before(ledger: Any, brokers: Brokers, tmp_path: Path) -> None:
    """Not a `provision`, which would not create it."""
    brokers.commit(ledger.table.topology.group, {ledger.table.table.source.name: COMMANDS_READ})
    table = replace(ledger.table, table=replace(ledger.table.table, name="customers"))
    with pytest.raises(
        NothingBefore, match=r"no changelog of ledger\d+/customers: .* fix: give it the name that it had; if"
    ):
        Rebuild(cast(Any, None), brokers, [table], 2, tmp_path).run(ignore)


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    with accounts_stack(tmp_path / "stack", workers=1, command=faust_command) as stack:
        yield stack


def charge_once(accounts: str) -> None:
    headers = {"Idempotency-Key": "once"}
    httpx.post(f"{accounts}/ann/charges", json={"amount_cents": 2999}, headers=headers).raise_for_status()


@pytest.mark.long
def test_workers_of_the_next_version_go_on_from_it(spark: Any, own_stack: Stack, tmp_path: Path) -> None:
    (worker,) = own_stack.workers
    accounts = f"{worker.url}/accounts"
    for name in ("ann", "bob"):
        httpx.post(f"{accounts}/{name}").raise_for_status()
    charge_once(accounts)
    letter = f"accounts/{partition_of(b'bob', TOPOLOGY.partitions)}/bob"
    unknown = command("bob", "rob-1", "account.rob", {})  # of a later release, so what comes later waits behind it
    offset = send(own_stack.bootstrap, int(letter.split("/")[1]), b"bob", unknown)
    await_letter(own_stack, letter, offset=offset, behind=0)
    httpx.post(f"{accounts}/bob/charges", json={"amount_cents": 7}, headers={"Prefer": "respond-async"})
    await_letter(own_stack, letter, offset=offset, behind=1)
    options = ["--bootstrap", own_stack.bootstrap, "--work", str(tmp_path / "work"), "--version"]

    live = CliRunner().invoke(cli, ["rebuild", "accounts", *options, "2"])
    assert isinstance(live.exception, GroupIsLive)
    worker.stop()
    provision([replace(TOPOLOGY, version=2)], own_stack.settings)
    successor = Worker("accounts", "9", own_stack.settings, own_stack.logs / "next.log", next_version)
    with pytest.raises(StageFailed, match="accounts-v2 has no position, and accounts"):
        successor.start()
    done = CliRunner().invoke(cli, ["rebuild", "accounts", *options, "2"], catch_exceptions=False)
    assert done.output.splitlines()[-1] == "accounts-v2: 2 rows are ready; start its workers"

    successor.start()
    try:
        accounts = f"{successor.url}/accounts"
        assert httpx.get(f"{accounts}/ann").json()["balance_cents"] == 2999
        charge_once(accounts)  # a repeat is still one
        httpx.post(f"{accounts}/ann/charges", json={"amount_cents": 1}).raise_for_status()
        assert httpx.get(f"{accounts}/ann").json()["balance_cents"] == 3000
        own_stack.workers[:] = [successor]  # asked from here on
        await_letter(own_stack, letter, offset=offset, behind=1)
        ask(own_stack, letter, "discard", {"offset": offset, "reason": "it was a test"})
        ask(own_stack, letter, "retry")
        await_letter(own_stack, letter)
        assert httpx.get(f"{accounts}/bob").json()["balance_cents"] == 7
    finally:
        successor.stop()
    brokers, admin = Brokers(own_stack.bootstrap), AdminClient({"bootstrap.servers": own_stack.bootstrap})
    positions = brokers.positions("accounts-v2")
    admin.delete_consumer_groups(["accounts-v2"])["accounts-v2"].result()  # as brokers do after a week
    with pytest.raises(StageFailed, match="accounts-v2 has taken over from accounts,"):
        worker.start()  # it would decide again what its successor has decided
    worker.stop()
    brokers.commit("accounts-v2", positions)
    provision([replace(TOPOLOGY, version=3)], own_stack.settings)
    CliRunner().invoke(cli, ["rebuild", "accounts", *options, "3"], catch_exceptions=False)
    for version in (2, 3):
        table = replace(table_of("accounts", "accounts"), topology=replace(TOPOLOGY, version=version))
        assert str(consistency.check(spark, Brokers(own_stack.bootstrap), table)) == "2 of 2 accounts agree"


@pytest.mark.long  # in short, what `switch` plans then, in unit/test_versions.py
def test_a_rebuilt_version_answers_and_decides_once_it_is_switched_to(own_stack: Stack, tmp_path: Path) -> None:
    (worker,) = own_stack.workers
    httpx.post(f"{worker.url}/accounts/ann").raise_for_status()
    charge_once(f"{worker.url}/accounts")
    versions = Versions(replace(SERVICE, topology=TOPOLOGY.next_version), own_stack.settings)
    for plan in (versions.deploy, lambda: versions.retire(2)):  # Spark is to fill it, after all
        carry_out(plan)
    worker.stop()
    options = ["--bootstrap", own_stack.bootstrap, "--work", str(tmp_path / "work"), "--version", "2"]
    provision([versions.topology], own_stack.settings)
    CliRunner().invoke(cli, ["rebuild", "accounts", *options], catch_exceptions=False)
    successor = Worker("accounts", "9", own_stack.settings, own_stack.logs / "next.log", next_version)
    successor.start()
    try:
        accounts = f"{successor.url}/accounts"
        named = httpx.get(f"{accounts}/ann", headers={"Onefold-Version": "2"})
        assert named.json()["balance_cents"] == 2999
        assert httpx.get(f"{accounts}/ann").status_code == 503  # the active one has no workers
        eventually(lambda: len(versions.routes().owners(2)), lambda owned: owned == TOPOLOGY.partitions)
        carry_out(lambda: versions.switch("me", ""))
        eventually(lambda: httpx.get(f"{accounts}/ann").status_code, lambda status: status == 200)
        charge_once(accounts)  # a repeat is still one
        httpx.post(f"{accounts}/ann/charges", json={"amount_cents": 1}).raise_for_status()
        assert httpx.get(f"{accounts}/ann").json()["balance_cents"] == 3000
        with pytest.raises(StageFailed, match="accounts-v2 has taken over from accounts,"):
            worker.start()
        carry_out(lambda: versions.retire(1))
        assert not Brokers(own_stack.bootstrap).positions("accounts")
        assert httpx.get(f"{accounts}/ann").json()["balance_cents"] == 3000
    finally:
        successor.stop()


def carry_out(plan: Callable[[], Iterator[Step]]) -> None:
    for step in plan():
        step.do()
