"""The archive holds each record once, whatever process dies, and stands in for records that the topic no longer has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines import cli, consistency
from pipelines.archive import AnotherLog, Archive, ArchiveBehind, ArchiveRestored
from pipelines.catalog import FoldedTable, table_of
from pipelines.events import HistoryIncomplete, records_below
from pipelines.sinks import FolderNotShared
from services.accounts.domain.commands import Charge, OpenAccount
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Table, Topic, Topology
from tests.pipelines.conftest import PARTITIONS

ANN_AND_BOB = (("ann", OpenAccount()), ("bob", OpenAccount()))
CHARGE = Charge(amount_cents=500)


@pytest.fixture
def archive(spark: Any, ledger: Any, tmp_path: Path) -> Archive:
    return Archive(spark, str(tmp_path / "archive"), "accounts", ledger.table.events.name)


@pytest.fixture
def brokers(ledger: Any) -> Brokers:
    return Brokers(ledger.bootstrap)


def test_each_run_adds_the_new_committed_records(archive: Archive, brokers: Brokers, ledger: Any) -> None:
    assert archive.ends() == {}
    ledger.decide(*ANN_AND_BOB)
    assert archive.extend(brokers).records == 2
    assert archive.extend(brokers).records == 0
    ledger.decide_but_abort(("ann", CHARGE))
    ledger.decide(("ann", CHARGE))
    ledger.put_event("noise", b"not an event")
    assert archive.extend(brokers).records == 2
    assert archive.records().count() == 4
    of_ann = partition_of(b"ann", PARTITIONS)
    one = archive.between(brokers, {of_ann: 0}, {of_ann: archive.ends()[of_ann]})
    assert one.rdd.getNumPartitions() == archive.records().sparkSession.sparkContext.defaultParallelism
    days = {str(row.occurred_on) for row in archive.records().where("key <> 'noise'").collect()}
    assert days == {"1997-01-01", "1997-01-02", "1997-01-04"}
    assert list(archive.problems(brokers)) == []
    assert list(archive.broken_sequences()) == ["noise: 1 events, numbered from None to None"]
    (kept,) = archive.table().detail().select("properties").collect()
    assert kept.properties["delta.logRetentionDuration"] == "interval 366 days"  # Delta's own is 30


def test_records_archived_during_a_read_are_given_once(
    spark: Any, archive: Archive, brokers: Brokers, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(*ANN_AND_BOB)
    archive.extend(brokers)
    known = archive.ends()
    ledger.forget()
    ledger.decide(("ann", CHARGE), ("bob", CHARGE))
    archive.extend(brokers)
    monkeypatch.setattr(Archive, "_ends_in", lambda *_: known)  # another run has added to it since
    ends = brokers.settled_ends(archive.topic)
    assert records_below(spark, brokers, archive.topic, ends, archive).frame.count() == 4


@pytest.mark.usefixtures("executors_elsewhere")
def test_records_that_only_executors_would_have_are_not_archived(
    archive: Archive, brokers: Brokers, ledger: Any
) -> None:
    ledger.decide(*ANN_AND_BOB)
    root = Path(archive.path).parent
    with pytest.raises(FolderNotShared, match=f"0 of 2 rows that executors wrote are in {root}: "):
        archive.extend(brokers)
    assert not archive.exists()


def test_two_runs_from_the_same_start_archive_once(archive: Archive, brokers: Brokers, ledger: Any) -> None:
    ledger.decide(*ANN_AND_BOB)
    archive.extend(brokers)
    before = archive.ends()
    ledger.decide(("ann", CHARGE))
    archive.extend(brokers)
    late = archive.between(brokers, before, archive.ends())
    archive.append(late, before, archive.ends())
    assert archive.records().count() == 3
    assert list(archive.problems(brokers)) == []


def test_repeated_altered_and_missing_records_are_found(archive: Archive, brokers: Brokers, ledger: Any) -> None:
    ledger.decide(*ANN_AND_BOB, ("ann", CHARGE), ("bob", CHARGE))
    archive.extend(brokers)
    table = archive.table()
    table.delete("key = 'ann' AND value LIKE '%opened%'")
    table.update("key = 'bob' AND value LIKE '%opened%'", {"value": "CAST('{}' AS BINARY)"})
    rows = archive.records().where("key = 'bob'").selectExpr(f"'{archive.topic}' AS topic", "*")
    rows.write.format("delta").mode("append").save(archive.path)
    found = "\n".join([*archive.problems(brokers), *archive.broken_sequences()])
    assert "there 2 times" in found
    assert "not archived" in found
    assert "altered" in found
    assert "ann: 1 events, numbered from 2 to 2" in found


@pytest.mark.usefixtures("spark")
def test_verify_accepts_copies_and_empty_topics(ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = {"new": views_of("new", "days"), "sold": views_of("sold", "skus", "insights")}
    provision([views[0].topology for views in shop.values()], Settings(bootstrap=ledger.bootstrap))
    copies = replace(ledger, table=shop["sold"][0])
    for _ in range(2):
        copies.put_event("abba", ledger.event("order", sequence=4))
    monkeypatch.setattr(cli, "services", lambda: [*shop])
    monkeypatch.setattr(cli, "tables", shop.__getitem__)
    options = ["--verify", "--compact", "--bootstrap", ledger.bootstrap]
    run = CliRunner().invoke(cli.cli, ["archive", str(tmp_path), *options])
    assert run.exit_code == 0, run.output
    assert "new.by-days.v1: 0 records archived" in run.output
    assert "sold.by-skus.v1: 2 records archived" in run.output


@pytest.mark.usefixtures("spark")
def test_verify_exits_with_1_when_it_finds_a_problem(
    ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.put_event("ann", ledger.event("ann", sequence=2))
    monkeypatch.setattr(cli, "tables", lambda _: [ledger.table])
    arguments = ["archive", str(tmp_path), "accounts", "--bootstrap", ledger.bootstrap]
    assert CliRunner().invoke(cli.cli, arguments).exit_code == 0
    run = CliRunner().invoke(cli.cli, [*arguments, "--verify"])
    assert run.exit_code == 1, run.output
    assert "ann: 1 events, numbered from 2 to 2" in run.output


@pytest.mark.usefixtures("spark")
def test_a_topic_that_is_refused_does_not_keep_the_others_from_the_archive(
    ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = views_of("kept", "days", "skus")
    provision([views[0].topology], Settings(bootstrap=ledger.bootstrap))
    days = replace(ledger, table=views[0])
    days.put_event("lost", b"{}")
    days.forget()
    replace(ledger, table=views[1]).put_event("abba", b"{}")
    monkeypatch.setattr(cli, "tables", lambda _: views)
    run = CliRunner().invoke(cli.cli, ["archive", str(tmp_path), "kept", "--bootstrap", ledger.bootstrap])
    assert run.exit_code == 2
    assert "kept.by-days.v1: offsets were removed before they were archived" in run.stderr
    assert run.stdout == "kept.by-skus.v1: 1 records archived\n"


def views_of(service: str, *names: str) -> tuple[FoldedTable, ...]:
    """Views of sales that read topics of their own."""
    views = tuple(Table(name, Topic(f"{service}.by-{name}.v1")) for name in names)
    topology = Topology(service, tuple(view.source for view in views), views, PARTITIONS)
    return tuple(replace(table_of("sales", v.name), topology=topology, table=v, events=v.source) for v in views)


def test_compacting_merges_small_files(archive: Archive, brokers: Brokers, ledger: Any) -> None:
    for command in (OpenAccount(), CHARGE, CHARGE):
        ledger.decide(("ann", command), same_day=True)
        archive.extend(brokers)
    assert archive.compact() == (3, 1)
    assert archive.records().count() == 3
    ledger.decide(("ann", CHARGE))
    assert archive.extend(brokers).records == 1
    assert list(archive.problems(brokers)) == []


def test_parity_reads_from_the_archive_what_the_topic_no_longer_has(
    spark: Any, archive: Archive, brokers: Brokers, ledger: Any
) -> None:
    ledger.decide(*ANN_AND_BOB, ("ann", CHARGE))
    archive.extend(brokers)
    ledger.forget()
    ledger.decide(("ann", CHARGE), ("eve", OpenAccount()))
    with pytest.raises(HistoryIncomplete, match=r"offsets 0 to \d+ are not in the topic any more"):
        consistency.check(spark, brokers, ledger.table)
    assert consistency.check(spark, brokers, ledger.table, archive=archive).agree == 3
    assert archive.extend(brokers).records == 2
    assert list(archive.problems(brokers)) == []


def test_a_partition_without_an_archived_record_is_read_from_the_topic(
    spark: Any, archive: Archive, brokers: Brokers, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()))
    archive.extend(brokers)
    ledger.forget()
    ledger.decide(("bob", OpenAccount()))
    known = {partition: end for partition, end in archive.ends().items() if end}  # what the records alone show
    monkeypatch.setattr(archive, "_ends_in", lambda _: known)
    assert consistency.check(spark, brokers, ledger.table, archive=archive).agree == 2


def test_a_gap_before_unarchived_records_is_refused(archive: Archive, brokers: Brokers, ledger: Any) -> None:
    ledger.decide(("ann", OpenAccount()))
    archive.extend(brokers)
    ledger.decide(("ann", CHARGE))
    ledger.forget()
    with pytest.raises(ArchiveBehind, match="offsets were removed before they were archived: partition"):
        archive.extend(brokers)
    assert archive.records().count() == 1


def test_a_topic_that_ends_before_its_archive_is_refused(
    spark: Any, archive: Archive, brokers: Brokers, ledger: Any
) -> None:
    ledger.decide(("ann", OpenAccount()))
    archive.extend(brokers)
    ends = archive.ends()
    longer = {partition: end + 7 for partition, end in ends.items()}  # as if the topic had been recreated since
    archive.append(archive.between(brokers, ends, ends), ends, longer)
    with pytest.raises(AnotherLog, match="no longer has what is archived of it"):
        archive.extend(brokers)
    with pytest.raises(AnotherLog, match="no longer has what is archived of it"):
        records_below(spark, brokers, archive.topic, ends, archive)
    assert archive.ends() == longer


def test_a_topic_that_was_made_again_is_refused_however_long_it_is(
    archive: Archive, brokers: Brokers, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()))
    archive.extend(brokers)
    ledger.decide(("ann", CHARGE))
    with monkeypatch.context() as patched:
        patched.setattr(Brokers, "topic_ids", lambda *_: {"another"})
        with pytest.raises(AnotherLog, match=r"was made again since it was archived in .*, and is another; fix: "):
            archive.extend(brokers)
    assert archive.extend(brokers).records == 1


def test_the_log_of_a_year_ago_is_gone_and_the_next_run_goes_on(
    spark: Any, archive: Archive, brokers: Brokers, ledger: Any
) -> None:
    def run() -> set[Path]:
        ledger.decide(("ann", CHARGE))
        assert archive.extend(brokers).records == 1
        return {each for each in (Path(archive.path) / "_delta_log").iterdir() if each.suffix in (".json", ".parquet")}

    ledger.decide(*ANN_AND_BOB)
    archive.extend(brokers)
    spark.sql(f"ALTER TABLE delta.`{archive.path}` SET TBLPROPERTIES (delta.checkpointInterval = 2)")
    former = [run() for _ in range(3)][-1]
    for place in (Path(archive.path) / "_delta_log").iterdir():
        os.utime(place, (time.time() - 400 * 86_400,) * 2)
    for _ in range(4):
        now = run()
    assert not former & now
    assert archive.records().count() == 9
    assert list(archive.problems(brokers)) == []


@pytest.mark.parametrize("cut", [False, True])
def test_an_archive_is_not_read_for_a_topic_that_was_made_again(
    spark: Any, archive: Archive, brokers: Brokers, ledger: Any, cut: bool
) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", CHARGE))
    archive.extend(brokers)
    ledger.make_again()
    ledger.decide(("ann", CHARGE))
    if cut:
        ledger.forget()  # of fewer records than are archived
    ledger.decide(("ann", CHARGE), ("ann", CHARGE))
    ends = brokers.settled_ends(archive.topic)
    with pytest.raises(AnotherLog, match=f"{archive.topic} was made again since it was archived in {archive.path}: "):
        records_below(spark, brokers, archive.topic, ends, archive)


def test_an_archive_that_was_restored_to_before_a_run_is_refused_until_it_is_whole(
    archive: Archive, brokers: Brokers, ledger: Any
) -> None:
    for command in (OpenAccount(), CHARGE):
        ledger.decide(("ann", command))
        archive.extend(brokers)
    whole = archive.version()
    archive.table().restoreToVersion(0)
    with pytest.raises(ArchiveRestored, match=f"fix: RESTORE TABLE .* TO VERSION AS OF {whole}, or "):
        archive.extend(brokers)
    archive.table().restoreToVersion(whole)
    ledger.decide(("ann", CHARGE))
    assert archive.extend(brokers).records == 1
    assert list(archive.problems(brokers)) == []


def test_a_run_killed_while_it_writes_leaves_no_trace(archive: Archive, brokers: Brokers, ledger: Any) -> None:
    ledger.decide(*ANN_AND_BOB)
    archive.extend(brokers)
    ledger.decide(*[("ann", CHARGE)] * 60)  # each on a day of its own: 60 files
    before = data_files(archive)
    run = subprocess.Popen([sys.executable, "-c", EXTEND, *arguments(archive, brokers)], start_new_session=True)
    try:
        while data_files(archive) == before:
            assert run.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    assert data_files(archive) != before
    assert archive.records().count() == 2
    assert archive.extend(brokers).records == 60
    assert list(archive.problems(brokers)) == []


EXTEND = """
import sys
from pipelines.archive import Archive
from pipelines.session import spark_session
from shared.kafka.brokers import Brokers
root, service, topic, bootstrap = sys.argv[1:]
with spark_session("killed") as spark:
    Archive(spark, root, service, topic).extend(Brokers(bootstrap))
"""


def arguments(archive: Archive, brokers: Brokers) -> Sequence[str]:
    folder = Path(archive.path)
    return str(folder.parent), folder.name, archive.topic, brokers.bootstrap


def data_files(archive: Archive) -> set[Path]:
    return set(Path(archive.path).glob("occurred_on=*/*.parquet"))
