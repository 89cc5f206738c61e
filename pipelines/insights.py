"""What the purchases say of customers: revenue by day, who comes back, and who is worth what.

Every function takes and gives a DataFrame. A charge is (customer: string, at: timestamp, cents: long), one row each.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

CHARGED = "account.charged"
LATENESS = "7 days"  # a stream counts a charge that comes so much later than others; a batch counts all
_SCORES = 5


def charges(facts: DataFrame) -> DataFrame:
    """The charges among FACTS."""
    cents = F.get_json_object("data", "$.amount_cents").cast("long")
    charged = facts.where(F.col("type") == CHARGED)
    return charged.select(
        F.col("aggregate_id").alias("customer"), F.col("occurred_at").alias("at"), cents.alias("cents")
    )


def revenue_by_day(charges: DataFrame) -> DataFrame:
    """day: date (UTC), charges: long, cents: long. Of a batch or, with a watermark of LATENESS, of a stream."""
    source = charges.withWatermark("at", LATENESS) if charges.isStreaming else charges
    totals = source.groupBy(F.window("at", "1 day")).agg(F.count("*").alias("charges"), F.sum("cents").alias("cents"))
    return totals.select(F.to_date("window.start").alias("day"), "charges", "cents")


def retention(charges: DataFrame) -> DataFrame:
    """cohort: date, months: int, customers: long, share: double.

    Of the customers whose first charge was in the month `cohort`, how many were charged `months` months later.
    """
    month = F.trunc("at", "month")
    active = charges.select("customer", month.alias("month")).distinct()
    cohorts = active.groupBy("customer").agg(F.min("month").alias("cohort"))
    months = F.months_between("month", "cohort").cast("int")
    counted = active.join(cohorts, "customer").groupBy("cohort", months.alias("months"))
    customers = counted.agg(F.count("*").alias("customers"))
    size = F.first("customers").over(Window.partitionBy("cohort").orderBy("months"))
    return customers.select("cohort", "months", "customers", (F.col("customers") / size).alias("share"))


def segments(charges: DataFrame) -> DataFrame:
    """customer: string, recency_days: int, frequency: long, cents: long, r, f, m: 1 to 5 (best), segment: string.

    Recency counts back from the last charge of all.
    """
    last = F.max(F.max("at")).over(Window.partitionBy())
    customers = charges.groupBy("customer").agg(
        F.datediff(last, F.max("at")).alias("recency_days"),
        F.count("*").alias("frequency"),
        F.sum("cents").alias("cents"),
    )
    scored = customers.select(
        "*",
        _score(F.col("recency_days").desc()).alias("r"),
        _score(F.col("frequency").asc()).alias("f"),
        _score(F.col("cents").asc()).alias("m"),
    )
    recent, frequent = F.col("r") >= 4, F.col("f") >= 4
    segment = (
        F.when(recent & frequent, "champions")
        .when(recent, "recent")
        .when(frequent & (F.col("r") <= 2), "at risk")
        .when(frequent, "loyal")
        .when(F.col("r") == 1, "lost")
        .otherwise("passing")
    )
    return scored.withColumn("segment", segment)


def by_segment(segments: DataFrame) -> DataFrame:
    """segment: string, customers: long, cents: long."""
    return segments.groupBy("segment").agg(F.count("*").alias("customers"), F.sum("cents").alias("cents"))


def _score(order: Column) -> Column:
    """1 to 5 by fifths of all customers; equals are ordered by their id, so that every run scores alike."""
    return F.ntile(_SCORES).over(Window.orderBy(order, F.col("customer")))
