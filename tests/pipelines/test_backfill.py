"""Another system's history is imported whole or not at all, in order, and once."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException, Producer
from msgspec import structs
from pydantic import Field
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812
from typer.testing import CliRunner

from pipelines import backfill, consistency
from pipelines.arrow import as_batches, rows_of
from pipelines.backfill import (
    Backfill,
    BadMapping,
    Entered,
    NotBegun,
    RowMapping,
    Rule,
    find_lookups,
    looked_up,
    read_mapping,
    read_rows,
)
from pipelines.catalog import table_of
from pipelines.cli import cli
from pipelines.files import PROBLEM, BadSource, find
from pipelines.sinks import FolderNotShared
from pipelines.sources import RECORDS
from services.accounts.domain.commands import Charge, OpenAccount
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.state import Open
from shared.domain.envelope import EventCodec
from shared.domain.message import Event
from shared.domain.personal import Personal
from shared.domain.row import Row
from shared.kafka.appending import appending_config
from shared.kafka.brokers import Brokers, GroupIsLive
from shared.kafka.murmur2 import partition_of
from tests.pipelines.conftest import FIRST_DAY, PARTITIONS, latest, read_records

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"

MAPPING = """
key = "customer"
at = "to_timestamp(date, 'yyyyMMdd')"
order = ["date", "CAST(line AS INT)"]
where = "customer IS NULL OR customer <> 'test'"

[[events]]
type = "account.opened"
where = "nth = 1"

[[events]]
type = "account.charged"
version = 2
where = "dollars NOT IN ('0.00', '0')"
data.amount_cents = "CAST(CAST(dollars AS DECIMAL(18, 2)) * 100 AS BIGINT)"

[[events]]
type = "account.closed"
where = "dollars = '0.00'"
"""

PURCHASES = """line,customer,date,dollars
10,ann,19970301,0.00
2,ann,19970102,11.77
1,ann,19970101,29.99
3,bob,19970103,5.00
4,eve,19970104,7.00
5,eve,tomorrow,8.00
6,fay,19970105,1.00
7,fay,19970106,0
8,,19970107,1.00
9,test,19970108,1.00
11,gus,19970109,1.00
12,hal,19970110,
13,hal,19970111,2.00
"""


@pytest.fixture
def fill(spark: Any, ledger: Any, tmp_path: Path) -> Backfill:
    (tmp_path / "mapping.toml").write_text(MAPPING)
    return Backfill(spark, Brokers(ledger.bootstrap), ledger.table, read_mapping(tmp_path / "mapping.toml"))


@pytest.fixture
def purchases(spark: Any, tmp_path: Path) -> Any:
    (tmp_path / "purchases.csv").write_text(PURCHASES)
    return read_rows(spark, find(str(tmp_path / "purchases.csv")))


def events(ledger: Any) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for key, event in read_events(ledger):
        told = event["sequence"], event["type"], event["occurred_at"][:10], event["data"].get("amount_cents")
        found.setdefault(key, []).append(told)
    return found


def read_events(ledger: Any) -> list[tuple[str, Any]]:
    records = read_records(ledger.bootstrap, ledger.table.events.name)
    return [(record.key.decode(), json.loads(record.value or b"")) for record in records]


def test_rows_become_events_and_a_table_once_beside_live_accounts(
    spark: Any, ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path
) -> None:
    rejects = str(tmp_path / "rejects")
    ledger.decide(("gus", OpenAccount()), ("gus", Charge(amount_cents=1)))
    of_gus = events(ledger)
    assert fill.run(purchases, rejects) == Entered(written=6, known=0, rejected=8, left_out=1)
    assert events(ledger) == {
        **of_gus,
        "ann": [
            (1, "account.opened", "1997-01-01", None),
            (2, "account.charged", "1997-01-01", 2999),
            (3, "account.charged", "1997-01-02", 1177),
            (4, "account.closed", "1997-03-01", None),
        ],
        "bob": [(1, "account.opened", "1997-01-03", None), (2, "account.charged", "1997-01-03", 500)],
    }
    assert {key for key, event in read_events(ledger) if event.get("historical")} == {"ann", "bob"}
    assert str(consistency.check(spark, Brokers(ledger.bootstrap), ledger.table)) == "3 of 3 accounts agree"
    found = spark.read.format("delta").load(rejects).collect()
    assert {(json.loads(row.source)["line"], row.own, row.reason) for row in found} == {
        ("4", False, "`at` is not a timestamp"),
        ("5", True, "`at` is not a timestamp"),
        ("6", False, "no rule holds for the row"),
        ("7", True, "no rule holds for the row"),
        ("8", True, "an aggregate id cannot be empty"),
        ("11", True, "there is another event 1"),
        ("12", True, "`where` of account.charged is null, neither true nor false"),
        ("13", False, "`where` of account.charged is null, neither true nor false"),
    }
    assert fill.run(purchases, rejects) == Entered(written=0, known=6, rejected=8, left_out=1)
    assert sum(map(len, events(ledger).values())) == 8


@pytest.mark.long  # in short, columns of files, in test_files
def test_a_column_of_the_source_may_have_any_name_but_those_of_backfill_itself(
    spark: Any, ledger: Any, tmp_path: Path
) -> None:
    mapping = RowMapping(
        key="customer",
        at="to_timestamp(day, 'yyyyMMdd')",
        order=("at", "key"),
        events=(
            Rule(type="account.opened", where="nth = 1"),
            Rule(type="account.charged", version=2, where="source = 'shop'", data={"amount_cents": "key"}),
        ),
    )
    fill, rejects = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping), str(tmp_path / "rejects")
    columns = "customer string, day string, at string, source string, key int"
    sales = [("ann", "19970101", "b", "shop", 1), ("ann", "19970102", "a", "shop", 2), ("bob", "19970101", "a", "", 3)]
    rows = spark.createDataFrame([*sales, ("eve", "tomorrow", "a", "web", 4)], columns)
    assert fill.run(rows, rejects) == Entered(written=4, known=0, rejected=1)
    assert events(ledger) == {
        "ann": [
            (1, "account.opened", "1997-01-02", None),
            (2, "account.charged", "1997-01-02", 2),
            (3, "account.charged", "1997-01-01", 1),
        ],
        "bob": [(1, "account.opened", "1997-01-01", None)],
    }
    (rejected,) = spark.read.format("delta").load(rejects).collect()
    assert (bytes(rejected.key), json.loads(rejected.source)["source"]) == (b"eve", "web")
    with pytest.raises(BadMapping, match="the source has a column Nth"):
        fill.run(rows.withColumnRenamed("key", "Nth"), rejects)


@pytest.mark.long  # in short, a rule's `where` of which nobody knows
def test_a_row_of_which_nobody_knows_whether_to_take_it_is_rejected(spark: Any, ledger: Any, tmp_path: Path) -> None:
    opened = Rule(type="account.opened", where="nth = 1")
    mapping = RowMapping(key="who", at="day", order=("day",), where="CAST(cents AS INT) > 0", events=(opened,))
    fill, rejects = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping), str(tmp_path / "rejects")
    rows = [("ann", "1997-01-01", "1"), ("bob", "1997-01-01", "n/a"), ("eve", "1997-01-01", "0")]
    assert fill.run(spark.createDataFrame(rows, "who string, day string, cents string"), rejects).rejected == 1
    assert events(ledger).keys() == {"ann"}
    (rejected,) = spark.read.format("delta").load(rejects).collect()
    assert rejected.reason.startswith("`where` cannot be computed: ")


@pytest.mark.long  # in short, its reject beside live accounts
def test_a_text_is_a_time_only_if_it_has_year_month_and_day(spark: Any, ledger: Any) -> None:
    """Without, it would be today's, or the first of a month."""
    mapping = RowMapping(key="who", at="at", order=(), events=(Rule(type="account.opened"),))
    fill = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping)
    clear = [("ann", " 1997-1-02"), ("bob", "1997-01-02T09:00:00+09:00")]
    rows = [*clear, *((f"w{n}", text) for n, text in enumerate(("12:30", "T12:30", "1997", "1997-01", "-1")))]
    trial = fill.try_out(spark.createDataFrame(rows, "who string, at string"))
    assert [json.loads(event)["occurred_at"] for event in trial.events] == [
        "1997-01-02T00:00:00Z",
        "1997-01-02T00:00:00Z",
    ]
    assert [(each.rows, each.reason) for each in trial.entered.reasons] == [(5, "`at` is not a timestamp")]


@pytest.mark.parametrize("kind", ["long", "double", "decimal(8, 0)", "boolean"])
def test_a_number_is_no_time(kind: str, spark: Any, ledger: Any) -> None:
    mapping = RowMapping(key="'ann'", at="at", order=(), events=(Rule(type="account.opened"),))
    fill = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping)
    with pytest.raises(BadMapping, match=r"`at` is of the type .*, no time; fix: timestamp_seconds\(at\), "):
        fill.try_out(spark.createDataFrame([], f"at {kind}"))


def test_spark_has_the_values_that_a_file_has(spark: Any, tmp_path: Path) -> None:
    at = pa.array([FIRST_DAY.replace(tzinfo=None)], pa.timestamp("ns"))
    lines = pa.array([[{"sku": "a", "units": 2}]]).cast(pa.large_list(pa.struct({"sku": pa.string(), "units": "int8"})))
    named = {"at": at, "of.shop": pa.array(["web"]).dictionary_encode(), "lines": lines, "`": pa.nulls(1)}
    sizes = {"units": pa.array([2**64 - 1], pa.uint64()), "bytes": pa.array([b"b"], pa.large_binary())}
    (tmp_path / "sales [2026]").mkdir()
    pq.write_table(pa.table(named | sizes), tmp_path / "sales [2026]" / "no suffix")
    rows = read_rows(spark, find(f"{tmp_path}/sales [2026]/"))
    (row,) = rows.select(F.to_json(F.struct(*map(backfill._column, rows.columns)), backfill._TIME)).collect()
    assert json.loads(row[0]) == {
        "at": "1997-01-01T00:00:00.000000Z",
        "of.shop": "web",
        "lines": [{"sku": "a", "units": 2}],
        "units": 2**64 - 1,
        "bytes": "Yg==",
    }
    pq.write_table(pa.table({"took": pa.array([1], pa.time64("us"))}), tmp_path / "times")
    with pytest.raises(BadSource, match=r"times: .*time64.*; fix: write that column as another type"):
        read_rows(spark, find(f"{tmp_path}/times"))


@pytest.mark.long  # in short, texts that are no time
def test_an_instant_that_python_does_not_know_is_rejected_and_order_may_descend(
    spark: Any, ledger: Any, tmp_path: Path
) -> None:
    charge = Rule(type="account.charged", version=2, data={"amount_cents": "cents"})
    mapping = RowMapping(key="who", at="timestamp_seconds(at)", order=("cents DESC",), events=(charge,))
    fill, rejects = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping), str(tmp_path / "rejects")
    rows = [("ann", 900_000_000, 1), ("ann", 900_000_001, 2), ("bob", 900_000_000_000, 3)]  # bob's in ms
    assert fill.run(spark.createDataFrame(rows, "who string, at long, cents int"), rejects).rejected == 1
    assert [(sequence, cents) for sequence, *_, cents in events(ledger)["ann"]] == [(1, 2), (2, 1)]
    (rejected,) = spark.read.format("delta").load(rejects).collect()
    assert rejected.reason == "`at` is not a timestamp"


UNFIT = """CAST(30000000.00 * 100 AS INT)
int(1e10)
2147483647 + 1
CAST(100 AS TINYINT) * CAST(2 AS TINYINT)
abs(CAST(-128 AS TINYINT))
CAST(CAST('1e400' AS DOUBLE) AS BIGINT)
CAST('NaN' AS DOUBLE) :: INT
CAST(1e20 AS DECIMAL(38, 0)) * CAST(1e20 AS DECIMAL(38, 0))
CAST('12345678901234567.891' AS DECIMAL(38, 18)) * CAST('1.000000000000000001' AS DECIMAL(38, 18)) * 3
CAST(123.45 AS DECIMAL(4, 2))
round(CAST(127 AS TINYINT), -1)
CAST('0.50' AS INT)
'0.50' > 0
'two' * 2
text * 2
1 div 0
conv('fffffffffffffffff', 16, 10)
to_date('someday')
to_timestamp('19970230', 'yyyyMMdd')
make_date(2026, 2, 30)
element_at(array(1), 2)
to_number('1,2', '99')""".splitlines()


def test_what_does_not_fit_is_a_reject_whatever_function_made_it(spark: Any) -> None:
    fit = ["CAST(text AS STRING)", "NULL", "CAST(NULL AS INT) + 1", "CAST('2' AS INT) * 2", "1.10 * 100"]
    rules = [Rule(type="priced", data={"units": value}) for value in (*UNFIT, *fit)]
    with backfill.having(spark, backfill.APART):
        with backfill.having(spark, backfill.STRICT):  # as in a run, only while the expressions are analysed
            told = spark.createDataFrame([("two",)], "text string").select(F.array(*map(backfill._event, rules)))
        (events,) = told.first()
    computed = [event.data for event in events if event.wrong is None]
    assert [json.loads(data)["units"] for data in computed] == ["two", None, None, 4, 110]
    assert {event.wrong for event in events if event.wrong} == {
        "`data.units` of priced cannot be computed: a number does not fit, or a text or a local time is no such value"
    }
    assert len(computed) == len(fit), [rule.data for rule, event in zip(rules, events, strict=True) if not event.wrong]


SALES = """Kunde;Tag;Betrag;Notiz;Status
Köln;30.12.2026 10:00;1.234,50;"a; b";paid
Käln;30.03.2026 10:00;20,00;;paid
Käln;29.03.2026 10:00;20,00;;open
eve;29.03.2026 02:30;1,00;;paid
bob;01.01.2026 10:00;30.000.000,00;;paid
kim;01.01.2026 10:00;1e3;;paid
kim;01.01.2026 09:00;1,00;;paid
1.23457E+12;01.01.2026 10:00;1,00;;paid
1,23457E+12;01.01.2026 10:00;1,00;;paid
-1E+12;01.01.2026 10:00;1,00;;paid
1.e+12;01.01.2026 10:00;1,00;;paid
7e10;01.01.2026 10:00;1,00;;paid
"""

OF_SALES = """\ufeffkey = "Kunde"
at = "Tag"
order = ["Tag DESC NULLS LAST"]
where = "Status = 'paid'"

[csv]
encoding = "cp1252"
separator = ";"
decimal = ","
thousands = "."
numbers.Betrag = 2

[times]
zone = "Europe/Berlin"
formats.Tag = "%d.%m.%Y %H:%M"

[[events]]
type = "account.charged"
version = 2
data.amount_cents = "CAST(Betrag * 100 AS INT)"
"""


def test_a_dry_run_shows_what_a_run_does(ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.tables", lambda _: [ledger.table])
    (tmp_path / "sales [2026].csv").write_bytes(SALES.replace("\n", "\r\n").encode("cp1252"))
    (tmp_path / "mapping.toml").write_text(OF_SALES, "utf-8")
    given = ["backfill", "accounts", str(tmp_path / "mapping.toml"), str(tmp_path / "sales [2026].csv")]
    options = ["--rejects", str(tmp_path / "rejects"), "--bootstrap", ledger.bootstrap]
    with monkeypatch.context() as patched:
        patched.setattr(Brokers, "members", lambda *_: ("worker",))
        trial = CliRunner().invoke(cli, [*given, *options, "--dry-run"])
    assert (trial.exit_code, events(ledger), (tmp_path / "rejects").exists()) == (1, {}, False), trial.output
    first, second, third, *told = trial.output.splitlines()[-11:]
    assert [json.loads(event)["aggregate_id"] for event in (first, second, third)] == ["7e10", "Käln", "Köln"]
    assert json.loads(third)["occurred_at"] == "2026-12-30T09:00:00Z"
    overflow = (
        "`data.amount_cents` of account.charged cannot be computed: "
        "a number does not fit, or a text or a local time is no such value"
    )
    reasons = [line.split("; such as ") for line in told]
    examples = [json.loads(example) for _, *such in reasons for example in such]
    assert [(example["Kunde"], example.get(PROBLEM)) for example in examples] == [
        ("-1E+12", None),
        ("kim", {"Betrag": "1e3"}),
        ("eve", {"Tag": "29.03.2026 02:30"}),
        ("bob", None),
    ]
    assert [reason for reason, *_ in reasons] == [
        f"3 events would be written to {ledger.table.events.name}, 0 are there",
        "columns not used: Notiz",
        "1 rows left out by `where`",
        "4 rows wrong: `key` is a number that a spreadsheet has rounded; fix: export that column as text",
        "1 rows wrong: Betrag: no number with at most 2 digits behind the ','",
        "1 rows wrong: Tag: was skipped by the clocks of Europe/Berlin",
        f"1 rows wrong: {overflow}",
        "8 rows would be rejected",
    ]
    run = CliRunner().invoke(cli, [*given, *options])
    assert run.exit_code == 1, run.output
    assert events(ledger) == {
        "7e10": [(1, "account.charged", "2026-01-01", 100)],
        "Käln": [(1, "account.charged", "2026-03-30", 2000)],
        "Köln": [(1, "account.charged", "2026-12-30", 123450)],
    }


def test_a_key_with_the_digits_of_a_float_is_refused(spark: Any, ledger: Any, tmp_path: Path) -> None:
    mapping = RowMapping(key="who", at="now()", order=(), events=(Rule(type="account.opened"),))
    fill = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping)
    with pytest.raises(BadMapping, match=r"`key` is a double.*; fix: CAST\(who AS BIGINT\)"):
        fill.run(spark.createDataFrame([(12345678.0,)], "who double"), str(tmp_path / "rejects"))


def test_a_time_keeps_its_microseconds(spark: Any) -> None:
    local = "TIMESTAMP_NTZ '1997-01-01T09:00:00.123456'"
    rule = Rule(type="priced", data={"at": "TIMESTAMP '1997-01-01T09:00:00.123456Z'", "local": local})
    (row,) = spark.range(1).select(backfill._event(rule).alias("event")).collect()
    assert row.event.data == '{"at":"1997-01-01T09:00:00.123456Z","local":"1997-01-01T09:00:00.123456"}'


def test_a_field_that_the_event_lacks_or_that_is_personal_is_refused(spark: Any, ledger: Any, tmp_path: Path) -> None:
    def given(**data: str) -> None:
        rules = (Rule(type="account.opened", data=data), Rule(type="account.charged", data={"amount": "1"}))
        mapping = RowMapping(key="id", at="now()", order=(), events=rules)
        Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping).run(spark.range(0), str(tmp_path / "rejects"))

    given(credit_limit_cents="1")
    with pytest.raises(BadMapping, match=r"account\.opened has no field credit_limit; fix: "):
        given(credit_limit="1")
    with pytest.raises(BadMapping, match=r"account\.opened: holder is personal, and would be readable for ever; fix: "):
        given(holder="'Ann'")


def test_a_personal_field_is_refused_by_each_of_its_names() -> None:
    class Named(Event):
        TYPE = "named"
        holder: Personal = Field(None, alias="holderName")

    for name in ("holder", "holderName"):
        with pytest.raises(BadMapping, match=f"named: {name} is personal, and would be readable for ever; fix: "):
            backfill._refuse_fields([Rule(type="named", data={name: "'Ann'"})], [Named])


def test_a_personal_field_is_refused_in_an_older_version_too_which_may_name_it_differently() -> None:
    class Named(Event):
        TYPE = "named"
        VERSION = 2
        holder: Personal = None

    codec = EventCodec([Named], {("named", 1): lambda data: {"holder": data.get("name")}})
    backfill._refuse_fields([Rule(type="named", data={"name": "'Ann'"})], [Named])
    with pytest.raises(ValueError, match="named: holder is personal, and would be readable for ever; fix: remove it"):
        backfill._envelope(codec, "ann", FIRST_DAY, 1, "named", 1, '{"name":"Ann"}')
    assert backfill._envelope(codec, "ann", FIRST_DAY, 1, "named", 1, "{}")


def test_a_decimal_keeps_its_digits() -> None:
    class Priced(Event):
        TYPE = "priced"
        amount: Decimal
        rate: float

    def amount_of(data: str) -> Any:
        return codec.decode(backfill._envelope(codec, "ann", FIRST_DAY, 1, "priced", 1, data)).data.amount

    codec = EventCodec([Priced])
    exact = "12345678901234567.89"
    assert amount_of(f'{{"amount":{exact},"rate":0.1}}') == Decimal(exact)
    assert amount_of(f'{{"amount":"{exact}","rate":1.0E10}}') == Decimal(exact)
    with pytest.raises(ValueError, match=r"data\.rate"):
        amount_of(f'{{"amount":1,"rate":{exact}}}')


def test_what_is_loaded_is_historical() -> None:
    class Landed(Event):
        TYPE = "flight.landed"

    codec = EventCodec([Landed])
    assert codec.decode(backfill._envelope(codec, "lh-1", FIRST_DAY, 1, "flight.landed", 1, "{}")).historical


@pytest.mark.long  # in short, a second run of a source in which no two rows are equal
def test_rows_with_equal_order_are_recognised_by_a_second_run(spark: Any, ledger: Any, tmp_path: Path) -> None:
    charge = Rule(type="account.charged", version=2, data={"amount_cents": "cents"})
    mapping = RowMapping(key="'ann'", at="timestamp '1997-01-01'", order=("1",), events=(charge,))
    fill, rejects = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping), str(tmp_path / "rejects")
    assert fill.run(spark.range(3).selectExpr("id AS cents"), rejects) == Entered(written=3, known=0, rejected=0)
    assert fill.run(spark.range(3).selectExpr("2 - id AS cents"), rejects) == Entered(written=0, known=3, rejected=0)


@pytest.mark.long  # in short, the rejects of a run after a dry run
@pytest.mark.usefixtures("fill", "purchases")
def test_rejected_rows_exit_with_1(ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.tables", lambda _: [ledger.table])
    given = ["accounts", str(tmp_path / "mapping.toml"), str(tmp_path / "purchases.csv")]
    options = ["--rejects", str(tmp_path / "rejects"), "--bootstrap", ledger.bootstrap]
    run = CliRunner().invoke(cli, ["backfill", *given, *options])
    assert run.exit_code == 1, run.output
    command = f"rejects {tmp_path / 'rejects'}"
    assert f"7 rows were rejected; to see why: python3 dev.py {command}" in run.output
    shown = CliRunner().invoke(cli, [*command.split(), "--rows", "1"])
    assert shown.output.splitlines()[-9:] == [
        "1 rows, and 1 others of their aggregates: `at` is not a timestamp",
        '  {"line":"5","customer":"eve","date":"tomorrow","dollars":"8.00"}',
        "1 rows, and 1 others of their aggregates: `where` of account.charged is null, neither true nor false",
        '  {"line":"12","customer":"hal","date":"19970110"}',
        "1 rows, and 1 others of their aggregates: no rule holds for the row",
        '  {"line":"7","customer":"fay","date":"19970106","dollars":"0"}',
        "1 rows: an aggregate id cannot be empty",
        '  {"line":"8","date":"19970107","dollars":"1.00"}',
        "7 rows rejected",
    ]


def test_an_aggregate_that_cannot_be_folded_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events would be in the log for ever, and the first worker would number the next one from 1."""

    def evolve(account: Any, event: Any) -> Any:
        if getattr(event, "amount_cents", 0) == 13:
            raise ValueError("13 cents")
        return DECIDER.evolve(account, event)

    described = replace(table_of("accounts", "accounts"), pure=replace(DECIDER, evolve=evolve))
    monkeypatch.setattr(backfill, "table_in", lambda *_: described)

    def charged(key: str, sequence: int, cents: int) -> tuple[bytes, bytes, int, int]:
        data = f'{{"amount_cents":{cents}}}'
        value = backfill._envelope(DECIDER.event_codec, key, FIRST_DAY, sequence, "account.charged", 2, data)
        return key.encode(), value, sequence, sequence + 10

    rows = [charged("ann", 1, 13), charged("ann", 2, 5), charged("bob", 1, 5), charged("bob", 2, 13)]
    batches = as_batches([*rows, charged("eve", 1, 5)], "key binary, value binary, sequence long, nth int")
    (found,) = backfill._fold("services.accounts", "accounts", batches)
    assert [(row["key"], row["sequence"], row["nth"]) for row in found.to_pylist()] == [
        (b"ann", 1, 11),
        (b"bob", 2, 12),
    ]
    assert found.to_pylist()[0]["reason"] == "its events cannot be folded: ValueError: 13 cents"


@pytest.mark.long  # in short, it is rejected, above
def test_nothing_of_an_aggregate_that_cannot_be_folded_is_written(
    spark: Any, ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfoldable = spark.createDataFrame([(b"ann", 2, 2, "too much")], backfill._REASONS)
    monkeypatch.setattr(fill, "_unfoldable", lambda _: unfoldable)
    rejects = str(tmp_path / "rejects")
    assert fill.run(purchases.where("customer IN ('ann', 'bob')"), rejects) == Entered(written=2, known=0, rejected=3)
    assert events(ledger).keys() == {"bob"}
    assert {row.reason for row in spark.read.format("delta").load(rejects).collect()} == {"too much"}


def test_a_row_that_lags_its_events_is_rewritten_and_keeps_its_outcomes(ledger: Any) -> None:
    refused = Row(0, DECIDER.initial, {"c1": (0, "f", "command.failed", "no")}, 7)
    behind = Row(1, Open(balance_cents=5), {"c2": (1, "f", "command.failed", None)}, 8)
    rows: dict[str, Row[Any]] = {"refused": refused, "behind": behind, "even": structs.replace(behind, sequence=3)}
    for key, row in rows.items():
        ledger.put_row(key, DECIDER.row_codec.encode(row))

    def charged(key: str, sequence: int) -> tuple[Any, ...]:
        data = '{"amount_cents":5}'
        value = backfill._envelope(DECIDER.event_codec, key, FIRST_DAY, sequence, "account.charged", 2, data)
        return partition_of(key.encode(), PARTITIONS), sequence, None, key.encode(), value

    records = [charged(key, sequence) for key in (*rows, "new", "gap") for sequence in (1, 2, 3)]
    records = sorted(each for each in records if each != charged("gap", 2))
    live = consistency.live_rows(Brokers(ledger.bootstrap), ledger.table.changelog, None)
    found = backfill._followed("services.accounts", "accounts", live, as_batches(records, RECORDS))
    written = {bytes(key): DECIDER.row_codec.decode(value) for _, key, value in rows_of(found)}
    after = Row(3, Open(balance_cents=15), {}, -1)
    assert written == {
        b"refused": structs.replace(after, outcomes=refused.outcomes, offset=7),
        b"behind": structs.replace(after, outcomes=behind.outcomes, offset=8),
        b"new": after,
    }


LOOKUP = """
key = "customer"
at = "make_timestamp(1997, INT(month), INT(day), 12, 0, 0, homes.zone)"
order = ["day"]

[lookups.homes]
file = "homes.csv"
key = "town"
by = "town"

[[events]]
type = "account.opened"
"""


def test_what_cannot_be_looked_up_is_a_reject_and_a_key_with_the_digits_of_a_float_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    towns = pa.array(["Bonn", "York"])
    pq.write_table(pa.table({"code": pa.array([1, 2], pa.int64()), "town": towns}), tmp_path / "homes")
    (tmp_path / "rows.csv").write_text("code\n1\nA1\n3\n")
    by_number = LOOKUP.replace('by = "town"', 'by = "INT(code)"').replace('key = "town"', 'key = "code"')
    (tmp_path / "mapping.toml").write_text(by_number.replace("homes.csv", "homes"))
    mapping = read_mapping(tmp_path / "mapping.toml")
    rows = read_rows(spark, find(str(tmp_path / "rows.csv")))
    found = looked_up(rows, mapping, find_lookups(mapping)).select("code", "homes.town", f"{PROBLEM}.why")
    cannot = "cannot be computed: a number does not fit, or a text or a local time is no such value"
    assert {tuple(row) for row in found.collect()} == {
        ("1", "Bonn", None),
        ("A1", None, f"`lookups.homes.by` {cannot}"),
        ("3", None, None),
    }
    pq.write_table(pa.table({"code": pa.array([1.0, None]), "town": towns}), tmp_path / "homes")
    with pytest.raises(BadSource, match=r"homes: column code is a double, whose digits are no key; fix: write it as "):
        looked_up(rows, mapping, find_lookups(mapping))


@pytest.mark.long  # in short, what cannot be looked up, above
def test_a_row_is_looked_up_in_another_file_and_what_a_run_left_that_died_is_completed_by_any(
    spark: Any, ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mapping.toml").write_text(LOOKUP)
    (tmp_path / "homes.csv").write_text("town,zone\nBerlin,Europe/Berlin\nBonn,Europe/Berlin\nYork,Europe/London\n")
    (tmp_path / "rows.csv").write_text("customer,town,month,day,note\nzoe,York,7,1,\nyan,Bonn,1,1,\nxia,Ys,1,1,\n")
    ledger.decide(("gus", OpenAccount()))
    write, rejects = backfill._write_in_order, str(tmp_path / "rejects")

    def write_and_die(records: Any, *to: Any) -> None:
        write(records, *to)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backfill, "_write_in_order", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            fill.run(purchases.where("customer = 'bob'"), rejects)
    mapping = read_mapping(tmp_path / "mapping.toml")
    found = looked_up(read_rows(spark, find(str(tmp_path / "rows.csv"))), mapping, find_lookups(mapping))
    by_town = Backfill(spark, Brokers(ledger.bootstrap), ledger.table, mapping)
    assert by_town.try_out(found).unused == ["note"]
    assert by_town.run(found, rejects) == Entered(written=2, known=0, rejected=1)
    at = {key: event["occurred_at"] for key, event in read_events(ledger) if key in ("zoe", "yan")}
    assert at == {"zoe": "1997-07-01T11:00:00Z", "yan": "1997-01-01T11:00:00Z"}
    assert str(consistency.check(spark, Brokers(ledger.bootstrap), ledger.table)) == "4 of 4 accounts agree"

    (tmp_path / "homes.csv").write_text("town,zone\nBonn,Europe/Berlin\nBonn,Europe/Paris\n")
    with pytest.raises(BadSource, match=r"homes\.csv: town Bonn is there 2 times; fix: keep one"):
        looked_up(found.drop("homes"), mapping, find_lookups(mapping))


@pytest.mark.parametrize("begun", [True, pytest.param(False, marks=pytest.mark.long)])  # in short, one that has begun
def test_a_task_of_a_run_that_died_appends_nothing_twice(
    ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """It lives on for a moment on another machine, and appends when the next run has read what is there."""
    judge, rows = Backfill._judged, purchases.where("customer = 'bob'")
    partition = partition_of(b"bob", PARTITIONS)
    task = Producer(
        {
            **appending_config(ledger.bootstrap),
            "transactional.id": f"{ledger.table.topology.group}_backfill-{partition}",
        }
    )

    def judged_beside_it(self: Backfill, *given: Any) -> Any:
        found = judge(self, *given)
        if not begun:
            task.init_transactions(30)
        with suppress(KafkaException):  # it is fenced
            task.begin_transaction()
            for each in found.missing.orderBy("sequence").collect():
                task.produce(ledger.table.events.name, bytes(each.value), bytes(each.key), each.partition)
            task.commit_transaction(30)
        return found

    if begun:
        task.init_transactions(30)
    monkeypatch.setattr(Backfill, "_judged", judged_beside_it)
    fill.run(rows, str(tmp_path / "rejects"))
    assert [event["sequence"] for _, event in read_events(ledger)] == [1, 2]


@pytest.mark.long  # in short, a row that follows when a run that died is completed, and one that keeps its outcomes
def test_a_row_follows_the_events_that_a_run_adds(
    spark: Any, ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path
) -> None:
    rejects = str(tmp_path / "rejects")
    ledger.decide(("bob", Charge(amount_cents=1)))
    assert fill.run(purchases.where("customer = 'ann' AND dollars > 0"), rejects).written == 3
    assert fill.run(purchases.where("customer IN ('ann', 'bob')"), rejects) == Entered(written=3, known=3, rejected=0)
    assert str(consistency.check(spark, Brokers(ledger.bootstrap), ledger.table)) == "2 of 2 accounts agree"
    rows = latest(read_records(ledger.bootstrap, ledger.table.changelog))
    refused, bob = ledger.rows["bob"], DECIDER.row_codec.decode(rows[b"bob"] or b"")
    assert (bob.sequence, bob.outcomes, bob.offset) == (2, refused.outcomes, refused.offset)


def test_a_worker_that_starts_during_a_run_stops_it(
    ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = iter([(), (), (), ("worker",)])
    monkeypatch.setattr(Brokers, "members", lambda *_: next(members))
    with pytest.raises(GroupIsLive) as stopped:
        fill.run(purchases.where("customer = 'bob'"), str(tmp_path / "rejects"))
    assert "keep the workers stopped, then run this again" in stopped.value.__notes__[0]
    assert len(events(ledger)["bob"]) == 2
    assert read_records(ledger.bootstrap, ledger.table.changelog) == []


@pytest.mark.long  # in short, one that starts during a run, above
def test_a_worker_that_ran_while_rows_were_written_is_noticed(
    ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, table = backfill._write_in_order, ledger.table

    def write_beside_a_worker(records: Any, bootstrap: str, topic: str, *given: Any) -> None:
        write(records, bootstrap, topic, *given)
        if topic == table.changelog:
            Brokers(bootstrap).commit(table.topology.group, {table.table.source.name: {0: 0}})

    monkeypatch.setattr(backfill, "_write_in_order", write_beside_a_worker)
    with pytest.raises(GroupIsLive, match="ran meanwhile"):
        fill.run(purchases.where("customer = 'bob'"), str(tmp_path / "rejects"))


@pytest.mark.long  # in short, one that cannot be folded
def test_an_aggregate_that_lost_an_event_of_its_middle_gets_no_more(
    spark: Any, ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, rejects = backfill._write_in_order, str(tmp_path / "rejects")
    with monkeypatch.context() as patched:
        patched.setattr(backfill, "_write_in_order", lambda records, *to: write(records.where("sequence = 2"), *to))
        with pytest.raises(AnalysisException):  # rows have no sequence: it dies before they are written
            fill.run(purchases.where("customer = 'ann'"), rejects)
    assert fill.run(purchases.where("customer IN ('ann', 'bob')"), rejects) == Entered(written=2, known=0, rejected=3)
    assert [sequence for sequence, *_ in events(ledger)["ann"]] == [2]
    reasons = {row.reason for row in spark.read.format("delta").load(rejects).collect()}
    assert reasons == {"event 1 is missing, and event 2 is there"}


@pytest.mark.long  # in short, a row that lags its events
def test_a_run_of_an_earlier_release_that_died_is_completed(
    spark: Any, ledger: Any, fill: Backfill, purchases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purchases.where("customer = 'ann'").drop(PROBLEM).write.parquet(str(tmp_path / "ann.parquet"))
    ann = read_rows(spark, find(str(tmp_path / "ann.parquet")))
    write = backfill._write_in_order

    def write_and_die(records: Any, *to: Any) -> None:
        as_before = F.replace(F.col("value").cast("string"), F.lit('"historical":true,'), F.lit("")).cast("binary")
        write(records.where("sequence < 3").withColumn("value", as_before), *to)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backfill, "_write_in_order", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            fill.run(ann, str(tmp_path / "rejects"))
    assert len(events(ledger)["ann"]) == 2
    assert fill.run(ann, str(tmp_path / "rejects")) == Entered(written=2, known=2, rejected=0)
    written = [(event["sequence"], event.get("historical", False)) for _, event in read_events(ledger)]
    assert written == [(1, False), (2, False), (3, True), (4, True)]
    assert str(consistency.check(spark, Brokers(ledger.bootstrap), ledger.table)) == "1 of 1 accounts agree"


@pytest.fixture
def fill_next(spark: Any, ledger: Any, fill: Backfill) -> Backfill:
    """A backfill into the next version of the table."""
    table = replace(ledger.table, topology=replace(ledger.table.topology, version=2))
    return Backfill(spark, Brokers(ledger.bootstrap), table, fill._mapping)


def test_workers_of_any_version_have_to_be_stopped(
    ledger: Any, fill: Backfill, fill_next: Backfill, purchases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ledger.table.topology.group
    monkeypatch.setattr(Brokers, "members", lambda _, group: ("worker",) if group == first else ())
    for each in (fill, fill_next):
        with pytest.raises(GroupIsLive, match=f"workers of {first} are running"):
            each.run(purchases, "nowhere")


def test_a_version_that_was_not_rebuilt_is_not_filled(ledger: Any, fill_next: Backfill, purchases: Any) -> None:
    with pytest.raises(NotBegun, match="-v2 has no position: rebuild it first"):
        fill_next.run(purchases, "nowhere")
    assert events(ledger) == {}


def test_a_service_with_policies_is_filled_only_after_it_has_run(
    ledger: Any, fill: Backfill, purchases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers would not start: they would take its position for one that the brokers have forgotten."""
    monkeypatch.setattr(backfill, "answering_in", lambda package: [package])
    with pytest.raises(NotBegun, match="has no position: rebuild it first, or on a new cluster start it once"):
        fill.run(purchases, "nowhere")
    assert events(ledger) == {}


@pytest.mark.usefixtures("executors_elsewhere")
def test_nothing_is_imported_if_only_executors_would_have_the_rejected_rows(
    fill: Backfill, purchases: Any, ledger: Any, tmp_path: Path
) -> None:
    with pytest.raises(FolderNotShared):
        fill.run(purchases, str(tmp_path / "rejects"))
    assert events(ledger) == {}


@pytest.mark.parametrize("text", ["key = 1", "key", 'key = "a"\nat = "b"\norder = []\nevents = []\nmore = 1', "# ü"])
def test_an_invalid_mapping_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.toml").write_text(text, "latin-1")
    with pytest.raises(BadMapping, match=r"mapping\.toml: .+$") as refused:
        read_mapping(tmp_path / "mapping.toml")
    assert "\n" not in str(refused.value)


def test_the_mappings_on_the_page_are_valid(tmp_path: Path) -> None:
    def read(text: str) -> RowMapping:
        (tmp_path / "mapping.toml").write_text(text)
        return read_mapping(tmp_path / "mapping.toml")

    history, nightly = map(read, re.findall(r"```toml\n(key = .+?)```", PAGE.read_text(), re.DOTALL))
    assert (history.csv.numbers, history.times.zone) == ({"dollars": 2}, "Europe/Berlin")
    assert [rule.at for rule in nightly.commands] == ["departed", "arrived"]
