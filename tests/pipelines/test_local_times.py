"""A local time that clocks skipped, or showed twice, is not guessed by SQL either."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from pipelines import backfill
from pipelines.local_times import GuessedZone, sql

ZONE = "'America/New_York'"
PARTS = "year(x), month(x), day(x), hour(x), minute(x), 0"
INSTANTS = [
    f"to_utc_timestamp(x, {ZONE})",
    f"make_timestamp({PARTS}, {ZONE})",
    f"TRY_MAKE_TIMESTAMP({PARTS}, {ZONE})",
    f"convert_timezone({ZONE}, 'UTC', to_timestamp_ntz(x))",
    f"transform(array(x), each -> to_utc_timestamp(each, {ZONE}))[0]",
    f"CASE WHEN x < '2013-02' THEN x::timestamp ELSE to_utc_timestamp(x, {ZONE}) END",
]
NAMED = ["CAST(x || ' America/New_York' AS TIMESTAMP)", "to_timestamp(x || ' PST')", "timestamp(concat(x, 'CET'))"]
CLEAR = [
    "x::timestamp",
    "to_timestamp(concat(x, ' UTC'))",
    "CAST(concat(x, '+00:00') AS TIMESTAMP)",
    "timestamp(date(x))",
]
SKIPPED = "`at` is a local time that clocks skipped, or names its zone by letters"
REPEATED = "`at` is a local time that was there twice; fix: say `times.twice`"


@pytest.fixture
def shown(spark: Any) -> Any:
    texts = ["01-01 12:00:00", "03-10 01:59:00", "03-10 02:30:00", "03-10 03:00:00", "11-03 01:30:00", "11-03 02:00:00"]
    return spark.createDataFrame([(f"2013-{text}",) for text in texts], "x string").coalesce(1)


def test_a_local_time_is_one_instant_or_none(spark: Any, shown: Any) -> None:
    first, before, skipped, after, repeated, last = (
        "01-01 17:00",
        "03-10 06:59",
        None,
        "03-10 07:00",
        None,
        "11-03 07:00",
    )
    chosen = {"earlier": "11-03 05:30", "later": "11-03 06:30", None: repeated}
    with backfill.having(spark, backfill.APART | backfill.STRICT):
        columns = {
            (text, twice): backfill._tried(sql(text, twice))["value"]
            for text in (*INSTANTS, *NAMED, *CLEAR)
            for twice in (None, "earlier", "later")
        }
        told = [F.date_format(column, "MM-dd HH:mm").alias(str(n)) for n, column in enumerate(columns.values())]
        found = {
            key: list(values)
            for key, values in zip(columns, zip(*shown.select(told).collect(), strict=True), strict=True)
        }
    for text, twice in found:
        if text in INSTANTS:
            early = "01-01 12:00" if "2013-02" in text else first
            assert found[text, twice] == [early, before, skipped, after, chosen[twice], last], text
        else:
            assert found[text, twice].count(None) == (6 if text in NAMED else 0), text


def test_the_reason_says_what_the_clocks_did(spark: Any, shown: Any) -> None:
    with backfill.having(spark, backfill.APART | backfill.STRICT):
        at = f"make_timestamp({PARTS}, {ZONE})"
        times = [backfill._time(shown, *given) for given in ((at, None), (at, "later"), ("x || ' CET'", None))]
        rows = shown.select([time.wrong.alias(str(n)) for n, time in enumerate(times)]).collect()
    assert [list(told) for told in zip(*rows, strict=True)] == [
        [None, None, SKIPPED, None, REPEATED, None],
        [None, None, SKIPPED, None, None, None],
        [SKIPPED] * 6,
    ]


def test_a_pattern_that_reads_a_zones_name_is_refused(spark: Any) -> None:
    with pytest.raises(GuessedZone, match=r"VV.* reads a zone's name"):
        sql("to_timestamp(x, 'yyyy-MM-dd HH:mm VV')")
    sql("""to_timestamp(x, "yyyy-MM-dd'v'HH:mmXXX")""")
