"""The fold by itself, on Arrow batches as Spark hands them over."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipelines.cli import cause
from pipelines.folds import STATES, fold_batches
from pipelines.rebuild import _of_aggregate, _of_view
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged, AccountClosed, AccountEvent, AccountOpened
from services.accounts.domain.state import Open
from shared.domain.row import Row
from tests.pipelines.conftest import FIRST_DAY

CODEC = DECIDER.event_codec
OPENED, CHARGED = AccountOpened(), AccountCharged(amount_cents=5)
VIEW = ("tests.pipelines.charged", "totals")


def value(account: str, sequence: int, event: AccountEvent) -> bytes:
    return CODEC.write(
        event,
        event_id=f"{account}-{sequence}",
        aggregate_id=account,
        sequence=sequence,
        occurred_at=FIRST_DAY,
        correlation_id="c",
    )


def batch(*records: tuple[int, int, str, bytes]) -> pa.RecordBatch:
    partitions, offsets, keys, values = zip(*records, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array(partitions, pa.int32()),
            "offset": offsets,
            "key": [key.encode() for key in keys],
            "value": values,
        }
    )


def folded(
    *batches: pa.RecordBatch,
    since: dict[int, int] | None = None,
    table: tuple[str, str] = ("services.accounts", "accounts"),
    partitions: int | None = None,
) -> dict[str, dict[str, Any]]:
    rows = [row for out in fold_batches(*table, partitions, since or {}, batches) for row in out.to_pylist()]
    return {row["key"].decode(): row for row in rows}


def state(cents: int) -> bytes:
    return Open(balance_cents=cents).model_dump_json().encode()


def test_a_fold_continues_across_batches_and_restarts_in_each_partition() -> None:
    rows = folded(
        batch((0, 3, "ann", value("ann", 1, OPENED)), (0, 4, "bob", value("bob", 1, OPENED))),
        batch((0, 9, "ann", value("ann", 2, CHARGED)), (1, 2, "eve", value("eve", 1, OPENED))),
        batch((1, 3, "eve", value("eve", 2, CHARGED)), (1, 4, "eve", value("eve", 3, CHARGED))),
    )
    assert {key: (row["partition"], row["sequence"], row["offset"], row["state"]) for key, row in rows.items()} == {
        "ann": (0, 2, 9, state(5)),
        "bob": (0, 1, 4, state(0)),
        "eve": (1, 3, 4, state(10)),
    }


def test_from_a_given_offset_on_every_state_is_returned() -> None:
    rows = folded(
        batch((0, 3, "ann", value("ann", 1, OPENED)), (0, 4, "ann", value("ann", 2, CHARGED))),
        batch((0, 5, "ann", value("ann", 3, CHARGED)), (0, 6, "bob", value("bob", 1, OPENED))),
        since={0: 4},
    )
    assert (rows["ann"]["sequence"], rows["ann"]["state"]) == (1, state(0))
    assert rows["ann"]["later"] == [state(5), state(10)]
    assert (rows["bob"]["sequence"], rows["bob"]["later"]) == (0, [state(0)])


def test_a_record_after_the_given_offset_that_cannot_be_folded_is_no_problem_yet() -> None:
    noise = batch((0, 4, "ann", b"noise"), (0, 5, "bob", b"noise"), (0, 6, "ann", value("ann", 2, CHARGED)))
    rows = folded(batch((0, 3, "ann", value("ann", 1, OPENED))), noise, since={0: 4})
    assert (rows["ann"]["sequence"], rows["ann"]["later"], rows["ann"]["problem"]) == (1, [], None)
    assert rows.keys() == {"ann"}


def test_an_event_of_an_older_version_is_upcast() -> None:
    old = value("ann", 2, CHARGED).replace(b'"schema_version":2', b'"schema_version":1')
    old = old.replace(b'{"amount_cents":5}', b'{"amount":"29.99"}')
    assert b"29.99" in old
    rows = folded(batch((0, 0, "ann", value("ann", 1, OPENED)), (0, 1, "ann", old)))
    assert rows["ann"]["state"] == state(2999)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (value("ann", 3, CHARGED), "at offset 1: sequence 3 follows 1"),
        (value("ann", 1, OPENED), "at offset 1: sequence 1 follows 1"),
        (value("bob", 2, CHARGED), "at offset 1: BadMessage: the record's key is not the aggregate id in its body"),
        (b"not JSON", "at offset 1: BadMessage: not JSON"),
        (
            value("ann", 2, CHARGED).replace(b'"schema_version":2', b'"schema_version":3'),  # as of a later release
            "at offset 1: Unknown: schema_version: ",
        ),
    ],
)
def test_a_broken_history_stops_its_own_key_only(second: bytes, problem: str) -> None:
    rows = folded(
        batch(
            (0, 0, "ann", value("ann", 1, OPENED)),
            (0, 1, "ann", second),
            (0, 2, "eve", value("eve", 1, OPENED)),
            (0, 3, "eve", value("eve", 2, AccountClosed())),
        )
    )
    assert rows["ann"]["problem"].startswith(problem)
    assert (rows["ann"]["sequence"], rows["ann"]["state"]) == (1, state(0))
    assert (rows["eve"]["sequence"], rows["eve"]["problem"]) == (2, None)


def test_a_history_whose_first_record_is_broken_is_a_row_too() -> None:
    rows = folded(batch((2, 7, "ann", value("ann", 2, CHARGED))))
    assert (rows["ann"]["sequence"], rows["ann"]["problem"]) == (0, "at offset 7: sequence 2 follows 0")


def test_records_out_of_order_are_a_bug_of_the_source() -> None:
    first, second = value("ann", 1, OPENED), value("ann", 2, CHARGED)
    with pytest.raises(AssertionError, match="not sorted"):
        folded(batch((0, 5, "ann", first)), batch((0, 4, "ann", second)))


COUNTED = value("ann", 7, CHARGED)


def test_a_view_is_the_fold_of_the_events_it_counts_and_skips_the_others() -> None:
    rows = folded(
        batch(
            (0, 3, "abba", COUNTED),
            (0, 4, "abba", value("abba", 1, OPENED)),  # of a type the view does not count
            (0, 5, "bach", b"noise"),
            (0, 6, "bach", COUNTED),
            (0, 7, "abba", COUNTED),
        ),
        table=VIEW,
    )
    assert rows["bach"]["problem"].startswith("at offset 5: BadMessage: not JSON")
    assert rows["bach"]["sequence"] == 0  # the engine parks the following records, too
    assert (rows["abba"]["sequence"], rows["abba"]["offset"], rows["abba"]["problem"]) == (2, 7, None)
    assert b'"charges":2,"cents":10' in rows["abba"]["state"]


@pytest.mark.parametrize(
    ("partition", "key", "problem"),
    [
        (0, "bach", "in partition 0, but its key belongs to 3"),
        (0, "..", "its key is no aggregate id"),
    ],
)
def test_a_view_has_no_row_where_the_engine_parks_its_record(partition: int, key: str, problem: str) -> None:
    rows = folded(batch((partition, 3, key, COUNTED)), table=VIEW, partitions=8)
    assert rows[key]["problem"].startswith(f"at offset 3: BadMessage: {problem}")
    assert rows[key]["sequence"] == 0


def test_a_view_whose_row_could_not_be_read_again_is_a_problem() -> None:
    (rows,) = fold_batches(*VIEW, None, {}, [batch((3, 3, "bach", COUNTED))])
    column = STATES.split(", ").index("state binary")
    broken = rows.set_column(column, rows.schema.field(column), pa.array([b"5"]))
    (found,) = [row for out in _of_view(*VIEW, [rows, broken]) for row in out.to_pylist()][1:]
    assert found["value"] is None
    assert found["problem"].startswith("its new row could not be read again: ")


@pytest.mark.parametrize(("position", "offset"), [(8, 7), (3, -1)], ids=["same source", "another source before"])
def test_an_aggregate_takes_over_the_place_of_its_last_command_unless_that_was_in_another_topic(
    position: int, offset: int
) -> None:
    old = DECIDER.row_codec.encode(Row(1, Open(balance_cents=0), {"c-1": (1, "d", "command.failed", None)}, 7))
    columns = {"partition": 2, "key": b"ann", "row": old, "sequence": 1, "state": state(5), "problem": None}
    both = pa.RecordBatch.from_pylist([columns])
    (rows,) = _of_aggregate("services.accounts", "accounts", {2: position}, [both])
    row = DECIDER.row_codec.decode(rows.to_pylist()[0]["value"])
    assert row == Row(1, Open(balance_cents=5), {"c-1": (1, "d", "command.failed", None)}, offset)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ("job aborted\n\tat x\nCaused by: java.io.IOException: gone\n\tat y", "java.io.IOException: gone"),
        ("job aborted\n\tat x", "job aborted"),
        ("a\nCaused by: java.io.IOException: No space left on device", "the disk is full"),
        (
            "job aborted\nCaused by: Traceback:\n  File x\nshared.kafka.brokers.BrokersUnavailable: gone\n\n\tat y",
            "gone",
        ),
        ("Py4JJavaError: job aborted\n\tat x\nPython worker exited unexpectedly", "a Python worker was killed"),
        (
            "\n  An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            '  File "x", line 1\n    f()\n    ~^^\nValueError: year 57338\n\n',
            "a Python worker raised ValueError: year 57338",
        ),
        ("", "without a message"),
    ],
)
def test_a_stack_trace_becomes_one_line(report: str, why: str) -> None:
    assert cause(report).startswith(why)
