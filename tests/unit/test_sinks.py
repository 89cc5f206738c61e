"""What a sink makes of records, without a database."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Column, Integer, String

from shared.domain.envelope import EventCodec
from shared.domain.errors import BadMessage
from shared.domain.row import Row, RowCodec
from shared.sinks.sink import Change, Changed, Delete, EventsOf, RowsOf, Sink, Upsert
from shared.topology.topics import Topic, Topology
from tests.accounts.domain.events import AccountCharged, AccountOpened
from tests.accounts.domain.state import Account, Closed, Open
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.sinks import accounts_sink, charges_sink
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY


def row(state: Account, sequence: int = 1) -> bytes:
    return RowCodec[Account](Account).encode(Row(sequence, state, {}, offset=0))


def event(event: AccountCharged | AccountOpened, sequence: int) -> bytes:
    codec = EventCodec((AccountCharged, AccountOpened), UPCASTERS)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return codec.write(
        event, event_id=f"e{sequence}", aggregate_id="ann", sequence=sequence, occurred_at=noon, correlation_id="c"
    )


def changed_by(sink: Sink, *records: tuple[str, bytes | None]) -> Changed:
    changed: Changed = {}
    for key, value in records:
        decoded = sink.source.decode(value)
        if sink.source.passes(decoded):
            sink.change(changed, key, decoded)
    return changed


def test_a_row_of_a_table_becomes_a_row_of_the_database() -> None:
    found = changed_by(accounts_sink(), ("ann", row(Open(balance_cents=5), 3)), ("bob", row(Open())))
    assert found == {("ann",): ("ann", None, 5, 3), ("bob",): ("bob", None, 0, 1)}


def test_the_last_change_of_a_row_counts() -> None:
    records = [("ann", row(Open(balance_cents=5))), ("ann", row(Open(balance_cents=7), 2))]
    assert changed_by(accounts_sink(), *records) == {("ann",): ("ann", None, 7, 2)}
    assert changed_by(accounts_sink(), *records, ("ann", row(Closed(), 3))) == {("ann",): None}
    assert changed_by(accounts_sink(), ("ann", row(Closed())), records[0]) == {("ann",): ("ann", None, 5, 1)}


def test_a_row_that_is_no_more_is_told_as_none() -> None:
    assert changed_by(accounts_sink(), ("ann", None)) == {("ann",): None}


def test_events_of_other_types_are_skipped() -> None:
    charge, noon = AccountCharged(amount_cents=9), datetime(2026, 1, 1, 12, tzinfo=UTC)
    found = changed_by(charges_sink(), ("ann", event(AccountOpened(), 1)), ("ann", event(charge, 2)))
    assert found == {("ann", 2): ("ann", 2, 9, noon)}


def test_an_event_without_a_value_is_refused() -> None:
    with pytest.raises(BadMessage, match="no value"):
        changed_by(charges_sink(), ("ann", None))


def test_a_sink_reads_the_changelog_of_its_services_version() -> None:
    later = Topology("accounts", topics=TOPOLOGY.topics, tables=(ACCOUNTS,), version=2)
    assert RowsOf(ACCOUNTS, Account).topic_in(later) == "accounts-v2-accounts-changelog"
    assert EventsOf(EVENTS, (AccountCharged,), UPCASTERS).topic_in(later) == EVENTS.name


def sink_of(rows: Iterable[Change], *columns: Column[Any], name: str = "things") -> Sink:
    return Sink(name, columns, EventsOf(Topic("a.events.v1"), (AccountOpened,)), lambda key, event: rows)


@pytest.mark.parametrize("values", [{"id": 1}, {"id": 1, "name": "a", "more": 2}, {"id": 1, "other": "a"}])
def test_a_row_needs_a_value_for_each_column_and_no_other(values: dict[str, Any]) -> None:
    sink = sink_of([Upsert(values)], Column("id", Integer, primary_key=True), Column("name", String))
    with pytest.raises((TypeError, KeyError)):
        sink.change({}, "key", None)


def test_a_table_may_have_nothing_but_its_key() -> None:
    sink = sink_of([Upsert({"id": 1}), Upsert({"id": 2}), Delete({"id": 1})], Column("id", Integer, primary_key=True))
    changed: Changed = {}
    sink.change(changed, "key", None)
    assert changed == {(1,): None, (2,): (2,)}


def test_a_sink_without_a_primary_key_or_with_another_kind_of_name_is_refused() -> None:
    with pytest.raises(ValueError, match="things_v1 has no primary key; fix:"):
        sink_of([], Column("id", Integer))
    with pytest.raises(ValueError, match="no name of a sink: 'Things'; fix:"):
        sink_of([], Column("id", Integer, primary_key=True), name="Things")
