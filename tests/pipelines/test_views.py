"""The consistency check of views, whose sources can hold records that are in no row."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from pipelines import consistency
from pipelines.catalog import table_in
from pipelines.rebuild import HistoryBroken, Rebuild
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged
from shared.domain.row import Row
from shared.kafka.brokers import Brokers, GroupIsLive
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.operations.reprocess import HistoryIsCut, Reprocessing
from shared.parking.parked import PAGE_CODE, PARKED_CODEC, OperatorRequest, Parked, noted_id, page_id
from shared.parking.requests import operator_requests
from shared.runtime.settings import Settings
from shared.topology.replay import Replay
from shared.topology.topics import Table, Topic, Topology
from tests.pipelines.charged.projections import Totals
from tests.pipelines.conftest import FIRST_DAY

NOISE = b"noise"
CHARGED = DECIDER.event_codec.write(
    AccountCharged(amount_cents=5),
    event_id="e",
    aggregate_id="ann",
    sequence=7,
    occurred_at=FIRST_DAY,
    correlation_id="c",
)


class View:
    """The view of charges by item in topics of its own; the tests write what its engine would write."""

    def __init__(self, spark: Any, bootstrap: str, service: str) -> None:
        self.source = Topic(f"{service}.by-item.v1")
        self.topology = Topology(service, (self.source,), (Table("totals", self.source),), partitions=1)
        model = table_in("tests.pipelines.charged", "totals")
        self.table = replace(model, topology=self.topology, table=self.topology.tables[0], events=self.source)
        self.brokers = Brokers(bootstrap)
        self._settings = Settings(bootstrap=bootstrap)
        self._spark = spark
        self._producer = Producer(producer_config(bootstrap) | {"log_level": 0})
        provision([self.topology], self._settings)

    def put(self, topic: Topic, key: str, value: bytes | None) -> None:
        self._producer.produce(topic.name, value, key.encode())
        assert self._producer.flush(30) == 0

    def receive(self, *records: tuple[str, bytes]) -> None:
        for key, value in records:
            self.put(self.source, key, value)

    def has(self, key: str, charges: int, offset: int) -> None:
        """Writes the engine's row after so many charges, the last of which is at `offset`."""
        totals = Totals(charges=charges, cents=5 * charges)
        row = self.table.row_codec.encode(Row(charges, totals, {}, offset))
        self.put(self.topology.changelog(self.table.table), key, row)

    def park(self, key: str, offset: int, *behind: int, partition: int = 0) -> None:
        """Each record on a page of its own."""
        place = {"processor": "totals", "topic": self.source.name, "partition": partition}
        parked = Parked(**place, offset=offset, code="message.bad", reason="not JSON", attempts=1)
        self._put_parked(f"totals/0/{key}", parked.model_copy(update={"pages": behind, "paged": len(behind)}))
        for first in behind:
            page = parked.model_copy(update={"offset": first, "code": PAGE_CODE})
            self._put_parked(page_id(f"totals/0/{key}", first), page)

    def _put_parked(self, id_: str, parked: Parked) -> None:
        row = PARKED_CODEC.encode(Row(1, parked, {}, parked.offset))
        self.put(self.topology.changelog(self.topology.parked), id_, row)

    def release(self, key: str) -> None:
        self.put(self.topology.changelog(self.topology.parked), f"totals/0/{key}", None)

    def ask(self, key: str, offset: int) -> OperatorRequest:
        request = OperatorRequest(action="discard", id=f"totals/0/{key}", offset=offset)
        self.put(self.topology.parking, request.id, request.model_dump_json().encode())
        return request

    def drop(self, key: str, offset: int) -> None:
        asked = self.ask(key, offset)
        note = asked.model_copy(update={"action": "dropped", "id": noted_id(asked.id, self.source.name)})
        self.put(self.topology.parking, note.id, note.model_dump_json().encode())

    def reprocess(self, replay: Replay) -> None:
        reprocessing = Reprocessing(self._settings.bootstrap)
        reprocessing.carry_out(reprocessing.plan(self.topology, replay))

    def read(self, unread: int = 0) -> None:
        """Commits the engine's position, so many records before the end."""
        (end,) = self.brokers.settled_ends(self.source.name).values()
        self.brokers.commit(self.table.topology.group, {self.source.name: {0: end - unread}})

    def moved(self) -> View:
        """The same view of another topic, which is empty."""
        successor = copy(self)
        successor.source = Topic(self.source.name.replace(".v1", ".v2"))
        table = replace(self.table.table, source=successor.source)
        successor.topology = replace(self.topology, topics=(self.source, successor.source), tables=(table,))
        successor.table = replace(self.table, topology=successor.topology, table=table, events=successor.source)
        provision([successor.topology], self._settings)
        return successor

    def rebuild(self, work: Path) -> View:
        """Rebuilds the view; returns its next version."""
        self.read()
        build = Rebuild(self._spark, self.brokers, [self.table], 2, work)
        provision([build.topology], self._settings)
        build.run(lambda *_: None)
        successor = copy(self)
        successor.table = replace(self.table, topology=build.topology)
        return successor

    def check(self, unread: int = 0, sample: int | None = None) -> str:
        self.read(unread)
        return str(consistency.check(self._spark, self.brokers, self.table, sample=sample))


def test_a_view_is_compared_up_to_a_parked_record_and_without_discarded_ones(spark: Any, bootstrap: str) -> None:
    view = View(spark, bootstrap, "parkedviews")
    view.receive(("waits", CHARGED), ("waits", NOISE), ("waits", CHARGED))
    view.receive(("goes-on", NOISE), ("goes-on", CHARGED))
    view.has("waits", charges=1, offset=0)
    view.has("goes-on", charges=1, offset=4)
    view.park("waits", 1, 2)
    view.drop("goes-on", offset=3)
    assert view.check() == "2 of 2 totals agree, 1 of them up to a parked record"
    view.park("elsewhere", 0, partition=1)
    assert view.check(sample=2) == "2 of 2 totals of partition 0 agree, 1 of all there up to a parked record"


def test_a_view_may_lag_its_source_but_not_the_position_of_its_workers(spark: Any, bootstrap: str) -> None:
    view = View(spark, bootstrap, "laterviews")
    view.receive(("a", CHARGED), ("a", CHARGED), ("b", CHARGED))
    view.has("a", charges=1, offset=0)
    assert view.check(unread=2) == "1 of 1 totals agree"
    assert "a: its row stopped at sequence 1, its events had gone on to 2" in view.check(unread=1)


def test_a_view_whose_workers_have_read_nothing_proves_nothing(spark: Any, bootstrap: str) -> None:
    view = View(spark, bootstrap, "unreadviews")
    view.receive(("a", CHARGED))
    with pytest.raises(consistency.NothingRead, match="has read nothing of it; fix: "):
        consistency.check(spark, view.brokers, view.table)


def test_a_dead_letter_that_is_retried_while_a_view_is_read_is_no_difference(
    spark: Any, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(spark, bootstrap, "retriedviews")
    view.receive(("a", CHARGED), ("b", CHARGED))
    view.has("b", charges=1, offset=1)
    view.park("a", 0)
    answers = [lambda: view.has("a", charges=1, offset=0), lambda: view.release("a")]

    def asked(*_: object) -> dict[bytes, bytes]:
        """Writes after the end of the rows that the check reads."""
        while answers:
            answers.pop(0)()
        return {}

    monkeypatch.setattr(consistency, "ask", asked)
    view.read()
    verdict = consistency.check(spark, view.brokers, view.table, url="http://worker")
    assert str(verdict) == "2 of 2 totals agree"


@pytest.mark.long  # in short, a view without discarded ones, above
def test_discarded_records_count_again_when_the_view_is_recomputed(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    view = View(spark, bootstrap, "discardedviews")
    view.receive(("a", CHARGED), ("a", CHARGED), ("b", NOISE), ("b", CHARGED))
    view.drop("a", offset=1)  # the code of that time could not count it
    view.drop("b", offset=2)
    view.reprocess(Replay(view.topology.tables, (view.source,), (view.source,)))
    view.drop("b", offset=2)  # it had been parked again
    view.has("a", charges=2, offset=1)
    view.has("b", charges=1, offset=3)
    assert view.check() == "2 of 2 totals agree"
    assert view.rebuild(tmp_path).check() == "2 of 2 totals agree"


@pytest.mark.long  # in short, one that dropped a record
def test_a_discard_that_dropped_nothing_leaves_no_record_out(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    view = View(spark, bootstrap, "mistypedviews")
    view.receive(("a", CHARGED), ("a", NOISE))
    view.has("a", charges=1, offset=0)
    view.drop("a", offset=1)
    view.ask("a", offset=0)
    assert view.check() == "1 of 1 totals agree"
    successor = view.rebuild(tmp_path)
    assert successor.check() == "1 of 1 totals agree"
    assert [request.action for request in operator_requests(view.brokers, successor.table.topology)] == ["dropped"]


def test_a_parked_record_stops_a_rebuild_until_a_worker_that_may_keep_running_discards_it(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(spark, bootstrap, "brokenviews")
    view.topology = replace(view.topology, topics=())  # a neighbour's, as in a service that writes nothing but rows
    view.table = replace(view.table, topology=view.topology)
    view.receive(("a", CHARGED), ("a", NOISE))
    view.has("a", charges=1, offset=0)
    view.park("a", 1)
    with pytest.raises(HistoryBroken, match="a: at offset 1: BadMessage"):
        view.rebuild(tmp_path)
    view.drop("a", offset=1)
    group = view.topology.group
    view.brokers.commit(group, {view.topology.parking.name: {0: 2}})
    monkeypatch.setattr(Brokers, "members", lambda _, asked: ("worker",) if asked == group else ())
    assert view.rebuild(tmp_path).check() == "1 of 1 totals agree"


@pytest.mark.long  # in short, a view that lags its source
def test_a_view_of_events_whose_index_begins_anew_is_whole_before_they_are(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    view = View(spark, bootstrap, "indexedviews")
    view.table = replace(view.table, topology=replace(view.topology, history=view.source))
    view.receive(("a", CHARGED), ("a", CHARGED))
    view.has("a", charges=2, offset=1)
    successor = view.rebuild(tmp_path)
    assert view.brokers.positions(successor.table.topology.group) == {view.source.name: {0: 0}}
    assert successor.check() == "1 of 1 totals agree"


@pytest.mark.long  # in short, tests/engine/test_policies_begin
def test_copies_that_are_made_again_count_once(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    view = View(spark, bootstrap, "copiedviews")
    view.receive(("a", CHARGED))
    view.reprocess(Replay(view.topology.all_tables(), (view.source,), (), skipped=(view.source,)))
    view.receive(("a", CHARGED))
    view.has("a", charges=1, offset=1)
    assert view.check() == "1 of 1 totals agree"
    assert view.rebuild(tmp_path).check() == "1 of 1 totals agree"
    view.reprocess(Replay(view.topology.tables, (view.source,), (view.source,)))
    assert view.brokers.positions(view.topology.group) == {view.source.name: {0: 1}}  # after the first copy


@pytest.mark.long  # in short, the same in a rebuild
def test_what_was_noted_of_another_source_does_not_count(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    view = View(spark, bootstrap, "movedviews")
    view.receive(("a", CHARGED), ("a", NOISE))
    view.reprocess(Replay(view.topology.all_tables(), (view.source,), (), skipped=(view.source,)))
    view.receive(("a", NOISE))
    view.drop("a", offset=2)
    moved = view.moved()
    moved.receive(*[("a", CHARGED)] * 4)
    moved.read()
    moved.reprocess(Replay(moved.topology.tables, (moved.source,), (moved.source,)))
    assert moved.brokers.positions(moved.topology.group)[moved.source.name] == {0: 0}
    moved.has("a", charges=4, offset=3)
    view.park("a", 3)
    assert moved.check() == "1 of 1 totals agree"
    assert moved.rebuild(tmp_path).check() == "1 of 1 totals agree"


def test_a_worker_that_ran_while_a_view_was_emptied_is_reported(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(None, bootstrap, "supervisedviews")
    view.receive(("a", CHARGED), ("a", CHARGED))
    view.read()
    empty = Reprocessing._empty

    def beside_a_worker(reprocessing: Reprocessing, *parts: Any) -> None:
        view.read()  # it skips what its rows hold
        empty(reprocessing, *parts)

    again = Replay(view.topology.tables, (view.source,), (view.source,))
    with monkeypatch.context() as patch:
        patch.setattr(Reprocessing, "_empty", beside_a_worker)
        with pytest.raises(GroupIsLive, match="a worker of the group supervisedviews came and went meanwhile"):
            view.reprocess(again)
    assert not list(
        operator_requests(view.brokers, view.topology)
    )  # if given up now, the rows are those of all records
    view.reprocess(again)
    assert view.brokers.positions(view.topology.group) == {view.source.name: {0: 0}}


@pytest.mark.long  # in short, tests/engine/test_policies_begin
def test_copies_that_retention_has_removed_are_skipped_like_the_others(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    view = View(spark, bootstrap, "briefviews")
    view.receive(("a", NOISE), ("a", NOISE))
    view.read()
    admin, cut = AdminClient({"bootstrap.servers": bootstrap}), TopicPartition(view.source.name, 0, 1)
    admin.delete_records([cut])[cut].result(30)
    with pytest.raises(HistoryIsCut, match=r"0 begins at offset 1: .*; fix: .* `reprocess` the whole service"):
        view.reprocess(Replay(view.topology.tables, (view.source,), (view.source,)))
    for _ in range(2):
        view.reprocess(Replay(view.topology.all_tables(), (view.source,), (), skipped=(view.source,)))
        assert view.brokers.positions(view.topology.group) == {view.source.name: {0: 2}}
    view.receive(("a", CHARGED))
    view.has("a", charges=1, offset=2)
    assert view.check() == "1 of 1 totals agree"
    assert view.rebuild(tmp_path).check() == "1 of 1 totals agree"


def test_a_service_that_copies_is_not_rebuilt_beside_its_workers(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(spark, bootstrap, "copyingviews")  # its own topic could be that of its copies
    monkeypatch.setattr(Brokers, "members", lambda _, asked: ("worker",) if asked == view.topology.group else ())
    with pytest.raises(GroupIsLive, match="workers of copyingviews are running"):
        view.rebuild(tmp_path)
