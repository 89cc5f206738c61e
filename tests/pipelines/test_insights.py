"""The counts are those of the charges; a stream counts what a batch counts, and resumes where it stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pyspark.sql import Row
from typer.testing import CliRunner

from pipelines import cli, pictures, results, sources
from pipelines.archive import AnotherLog, Archive
from pipelines.catalog import table_of
from pipelines.event_columns import event_columns
from pipelines.events import HistoryIncomplete
from pipelines.insights import (
    SEGMENTS,
    baskets,
    by_segment,
    charges,
    due,
    lines,
    retention,
    revenue_by_day,
    revenue_by_sku_and_cohort,
    segments,
)
from pipelines.pictures import draw_retention, draw_revenue
from services.accounts.domain.commands import Charge, OpenAccount, Pay
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged
from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from tests.pipelines.conftest import read_records
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
CHARGES = "customer string, at timestamp, cents long"


def at(month: int, day: int) -> datetime:
    return datetime(1997, month, day, 9, tzinfo=UTC)


@pytest.fixture
def charged(spark: Any) -> Any:
    rows = [
        ("ann", at(1, 5), 1000),
        ("ann", at(1, 5), 500),
        ("ann", at(3, 9), 700),
        ("bob", at(1, 6), 100),
        ("eve", at(2, 1), 900),
        ("eve", at(3, 9), 50),
    ]
    return spark.createDataFrame(rows, CHARGES)


def test_charges_are_counted_by_day_cohort_and_segment(charged: Any, tmp_path: Path) -> None:
    days = revenue_by_day(charged).collect()
    assert {row.day: (row.charges, row.cents) for row in days} == {
        date(1997, 1, 5): (2, 1500),
        date(1997, 1, 6): (1, 100),
        date(1997, 2, 1): (1, 900),
        date(1997, 3, 9): (2, 750),
    }
    months = retention(charged).collect()
    assert {(row.cohort.month, row.months): (row.customers, row.share) for row in months} == {
        (1, 0): (2, 1.0),
        (1, 2): (1, 0.5),
        (2, 0): (1, 1.0),
        (2, 1): (1, 1.0),
    }
    scored = segments(charged)
    assert {row.customer: (row.recency_days, row.frequency, row.cents) for row in scored.collect()} == {
        "ann": (0, 3, 2200),
        "bob": (62, 1, 100),
        "eve": (0, 2, 950),
    }
    told = {row.segment: (row.customers, row.cents) for row in by_segment(scored).collect()}
    assert told.keys() == set(SEGMENTS)
    assert told["champions"] == (0, 0)
    assert sum(cents for _, cents in told.values()) == 3250
    draw_revenue(days, tmp_path)
    draw_retention(months, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} >= {"revenue.svg", "revenue.png", "retention.svg"}


def test_what_an_account_owes_for_an_order_is_a_charge_when_the_order_is_settled(spark: Any) -> None:
    types = ("account.charged", "account.order_charged", "account.order_settled", "account.order_refunded")
    told = [("ann", type_, at(1, 5), json.dumps({"amount_cents": 10**n})) for n, type_ in enumerate(types)]
    found = charges(spark.createDataFrame(told, "aggregate_id string, type string, occurred_at timestamp, data string"))
    assert sorted(row.cents for row in found.collect()) == [1, 100]


def test_lines_are_counted_by_cohort_and_by_what_is_bought_together(spark: Any) -> None:
    def order(number: str, customer: str, at: str, *skus: str) -> tuple[str, str, str]:
        wishes = [{"sku": sku, "quantity": 2, "amount_cents": 100} for sku in skus]
        return number, "order.confirmed", json.dumps({"customer_id": customer, "placed_at": at, "lines": wishes})

    events = [
        order("o-1", "ann", "1997-01-05T12:00:00Z", "a", "b", "c"),
        order("o-2", "ann", "1997-03-05T12:00:00Z", "b", "a"),
        order("o-3", "bob", "1997-03-05T12:00:00Z", "a"),
        ("o-4", "order.rejected", "{}"),
    ]
    found = lines(spark.createDataFrame(events, "aggregate_id string, type string, data string")).cache()
    cohorts = revenue_by_sku_and_cohort(found).collect()
    assert {(row.sku, row.cohort.month): (row.units, row.cents) for row in cohorts} == {
        ("a", 1): (4, 200),
        ("b", 1): (4, 200),
        ("c", 1): (2, 100),
        ("a", 3): (2, 100),
    }
    assert [tuple(row) for row in baskets(found).collect()] == [(1, "a", "b", 2), (2, "a", "c", 1), (3, "b", "c", 1)]


def test_scores_are_fifths_of_all_customers(spark: Any) -> None:
    for count in (3, 997):
        rows = [(f"c{n:03}", at(1, 1 + n * 7 % 28), n * n % 31) for n in range(count)]
        found = segments(spark.createDataFrame(rows, CHARGES)).orderBy("cents", "customer").collect()
        more = count % 5
        sizes = [count // 5 + (number < more) for number in range(5)]
        assert [row.m for row in found] == [number + 1 for number, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize("rows", [[], [Row(cohort=date(1997, 1, 1), months=0, share=1.0)]])
def test_before_any_customer_returned_the_chart_has_no_share(rows: list[Row], tmp_path: Path) -> None:
    draw_revenue([], tmp_path)
    draw_retention(rows, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} >= {"revenue.svg", "retention.svg"}


def test_a_charge_of_the_year_1_does_not_hide_those_of_the_last_ten(tmp_path: Path) -> None:
    days = [Row(day=day, cents=100) for day in (date(1, 1, 1), date(1997, 1, 1))]
    draw_revenue(days, tmp_path)
    draw_revenue(days[:1], tmp_path / "alone")
    returned = [(date(1, 1, 1), 0), (date(1, 1, 1), 1996 * 12), (date(1997, 1, 1), 0)]
    draw_retention([Row(cohort=cohort, months=months, share=1.0) for cohort, months in returned], tmp_path)
    assert "<!-- 1 days are older than 10 years, and not drawn -->" in (tmp_path / "revenue.svg").read_text()
    assert "<!-- 1 cohorts are older than 10 years, and not drawn -->" in (tmp_path / "retention.svg").read_text()


def test_no_bar_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list[Figure]()
    monkeypatch.setattr(pictures, "_save", lambda figure, *_: figures.append(figure))
    draw_revenue([Row(day=date(1997, 1, day), cents=100) for day in (1, 2)], tmp_path)
    (axes,) = figures[0].axes
    first, last = axes.patches
    assert isinstance(first, Rectangle)
    assert isinstance(last, Rectangle)
    assert (first.get_x(), last.get_x() + last.get_width()) == axes.get_xlim()


def test_a_stream_does_not_accept_an_archive(tmp_path: Path) -> None:
    run = CliRunner().invoke(cli.cli, ["insights", "--stream", "--archive", str(tmp_path)])
    assert run.exit_code == 2
    assert "does not read an archive" in run.output


def test_nothing_is_counted_with_an_archive_of_a_topic_that_was_made_again(
    spark: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()))
    table, root, out = ledger.table, str(tmp_path / "archive"), tmp_path / "pictures"
    Archive(spark, root, table.topology.service, table.events.name).extend(Brokers(ledger.bootstrap))
    ledger.make_again()
    ledger.decide(("ann", Charge(amount_cents=500)), ("ann", Charge(amount_cents=500)))
    monkeypatch.setattr(cli, "table_of", lambda *_: table)
    monkeypatch.setattr(cli, "services", list)
    options = ["--archive", root, "--out", str(out), "--bootstrap", ledger.bootstrap]
    run = CliRunner().invoke(cli.cli, ["insights", *options])
    assert isinstance(run.exception, AnotherLog)
    assert not out.exists()


def test_a_stream_does_not_start_on_a_truncated_topic(
    ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", Charge(amount_cents=500)))
    ledger.forget()
    monkeypatch.setattr(cli, "table_of", lambda *_: ledger.table)
    monkeypatch.setattr(cli, "services", list)
    options = ["--out", str(tmp_path), "--bootstrap", ledger.bootstrap]
    run = CliRunner().invoke(cli.cli, ["insights", "--stream", *options])
    assert isinstance(run.exception, HistoryIncomplete)
    assert "count without --stream, from an archive" in str(run.exception)


def test_a_stream_counts_what_a_batch_counts(
    spark: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "table_of", lambda *_: ledger.table)
    monkeypatch.setattr(cli, "services", list)
    brokers = Brokers(ledger.bootstrap)

    def follow(out: Path = tmp_path) -> list[str]:
        options = ["--stream", "--batch", "4", "--out", str(out), "--bootstrap", ledger.bootstrap]
        run = CliRunner().invoke(cli.cli, ["insights", *options], catch_exceptions=False)
        told = f"written to insights.results.v1; the next run goes on from {out}/checkpoint"
        *before, last = [line for line in run.output.splitlines() if line.startswith(("written", "1 "))]
        assert last == told
        return before

    def followed() -> list[tuple[str, int]]:
        records = read_records(ledger.bootstrap, results.RESULTS.name)
        told = [json.loads(each.value or b"") for each in records if each.key.startswith(b"revenue:")]
        figures = [event["data"]["figures"] for event in told]
        return [(each["day"], each["cents"]) for each in figures]

    ledger.decide(("ann", OpenAccount()), ("bob", OpenAccount()))
    ledger.decide(("ann", Charge(amount_cents=500)), ("bob", Charge(amount_cents=70)), same_day=True)
    ledger.put_event("noise", b"no event")
    ledger.put_event("eve", a_charge(datetime.now(UTC) + timedelta(days=365)))
    never = "this stream never counts them, a run without --stream does once they are due"
    service = ledger.table.topology.service
    unread = f"1 records left out: they are no events of {service}; `parity {service}` names their keys"
    assert follow() == [unread, f"1 charges left out: they are dated ahead; {never}"]
    assert followed()[-1:] == [("1997-01-01", 570)]
    assert follow() == []
    ledger.decide(("ann", Charge(amount_cents=30)), ("ann", Pay(amount_cents=100)), same_day=True)
    ledger.put_event("eve", a_charge(datetime(1996, 12, 1, tzinfo=UTC)))
    late = "1 or more charges left out: they came over 7 days later than others; a run without --stream counts them"
    assert follow() == [late]
    assert followed()[-1:] == [("1997-01-01", 600)]
    moved = shutil.copytree(tmp_path, tmp_path / "moved")
    last_done = max((moved / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    for noted in (last_done, last_done.with_name(f".{last_done.name}.crc")):
        noted.unlink()  # as by a run that died before it noted that it had written
    ledger.decide(("ann", Charge(amount_cents=5)), same_day=True)
    follow(moved)
    assert followed()[-1:] == [("1997-01-01", 605)]

    name = ledger.table.events.name
    whole = sources.topic(spark, ledger.bootstrap, name, brokers.starts(name), brokers.settled_ends(name)).frame
    batch = revenue_by_day(due(charges(event_columns(whole, ledger.table)))).collect()
    assert {str(row.day): row.cents for row in batch} == {"1996-12-01": 9, "1997-01-01": 605}


@pytest.mark.long  # in short, a run that died before it noted that it had written, above
def test_a_stream_that_is_killed_in_any_phase_goes_on_where_it_was(spark: Any, stack: Stack, tmp_path: Path) -> None:
    url, checkpoint = stack.urls("accounts")[0], tmp_path / "checkpoint"
    httpx.post(f"{url}/accounts/streamed").raise_for_status()
    without_orders = "from pipelines import cli; cli.services = list; cli.main()"
    verb = [sys.executable, "-c", without_orders, "insights", "--stream", "--batch", "3", "--out", str(tmp_path)]
    verb += ["--bootstrap", stack.bootstrap, "--master", "local[2]"]

    def written() -> int:
        return len(read_records(stack.bootstrap, results.RESULTS.name))

    def files(pattern: str) -> int:
        return len([*checkpoint.glob(pattern)])

    def killed_at(traces: Callable[[], int] | None) -> int:
        before = traces() if traces else 0
        run = subprocess.Popen(verb, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: run.poll() is not None or (traces and traces() > before), deadline_s=300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
        return run.wait()

    planned, kept, done = (partial(files, each) for each in ("offsets/[0-9]*", "state/0/*/*.delta", "commits/[0-9]*"))
    for traces in (planned, kept, written, done, None):
        for _ in range(4):
            httpx.post(f"{url}/accounts/streamed/charges", json={"amount_cents": 7}).raise_for_status()
        assert killed_at(traces) == (-signal.SIGKILL if traces else 0)
    name = "accounts.events.v1"
    brokers = Brokers(stack.bootstrap)
    whole = sources.whole(spark, brokers, name).frame
    batch = revenue_by_day(due(charges(event_columns(whole, table_of("accounts", "accounts"))))).collect()
    records = read_records(stack.bootstrap, results.RESULTS.name)
    told = [json.loads(each.value or b"")["data"]["figures"] for each in records if each.key.startswith(b"revenue:")]
    assert {each["day"]: each["cents"] for each in told} == {str(row.day): row.cents for row in batch}
    assert sum(row.cents for row in batch) >= 5 * 4 * 7


def a_charge(at: datetime) -> bytes:
    return DECIDER.event_codec.write(
        AccountCharged(amount_cents=9),
        event_id="e",
        aggregate_id="eve",
        sequence=1,
        occurred_at=at,
        correlation_id="c",
    )


def test_the_aggregation_on_the_page_counts(spark: Any, ledger: Any, tmp_path: Path) -> None:
    ledger.decide(("ann", OpenAccount()), ("ann", Charge(amount_cents=500)), ("ann", Charge(amount_cents=70)))
    (code,) = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    verbs = {**vars(cli), "cli": typer.Typer(), "table_of": lambda *_: ledger.table}
    exec(code.replace(".onefold", str(tmp_path)), verbs)
    CliRunner().invoke(verbs["cli"], ["--bootstrap", ledger.bootstrap], catch_exceptions=False)
    days = spark.read.parquet(str(tmp_path / "weekdays")).collect()
    assert {row.day: row.cents for row in days} == {"Thursday": 500, "Friday": 70}
