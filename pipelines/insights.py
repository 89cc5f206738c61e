"""What the purchases say about customers: revenue by day, who comes back, who is worth what, what they buy together.

Every function takes and returns a DataFrame. A charge is (customer: string, at: timestamp, cents: long), one row each;
a line is one SKU of a confirmed order, (order: string, customer: string, at: timestamp, sku: string, units: long,
cents: long).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from shared.domain.times import CLOCKS_DIFFER

TOP_BASKETS = 100
SEGMENTS = ("champions", "recent", "at risk", "loyal", "lost", "passing")
AHEAD = "ahead"  # how many charges of a stream's batch are dated ahead
UNREAD = "unread"  # how many of its records are no events
LATENESS = "7 days"  # a stream counts a charge that comes so much later than others; a batch counts all

_CHARGED = ("account.charged", "account.order_settled")  # what is held for an order is charged when it ships
_CONFIRMED = "order.confirmed"
_SCORES = 5
_ORDER = (
    "customer_id string, placed_at timestamp, lines array<struct<sku: string, quantity: bigint, amount_cents: bigint>>"
)


def charges(events: DataFrame) -> DataFrame:
    """The charges among events in EVENT_COLUMNS, and a row of nulls for each record that is no event."""
    cents = F.get_json_object("data", "$.amount_cents").cast("long")
    charged = events.where(F.col("type").isin(*_CHARGED) | F.col("type").isNull())
    return charged.select(
        F.col("aggregate_id").alias("customer"), F.col("occurred_at").alias("at"), cents.alias("cents")
    )


def due(charges: DataFrame) -> DataFrame:
    """Those that are read and not dated ahead: to a stream, what comes after one of those would be late.

    A stream observes AHEAD and UNREAD.
    """
    ahead = F.col("at") > F.current_timestamp() + F.lit(CLOCKS_DIFFER)
    counts = F.count_if(ahead).alias(AHEAD), F.count_if(F.col("at").isNull()).alias(UNREAD)
    return (charges.observe(AHEAD, *counts) if charges.isStreaming else charges).where(~ahead)


def revenue_by_day(charges: DataFrame) -> DataFrame:
    """day: date (UTC), charges: long, cents: long. Of a batch or, with a watermark of LATENESS, of a stream."""
    source = charges.withWatermark("at", LATENESS) if charges.isStreaming else charges
    totals = source.groupBy(F.window("at", "1 day")).agg(F.count("*").alias("charges"), F.sum("cents").alias("cents"))
    return totals.select(F.to_date("window.start").alias("day"), "charges", "cents")


def lines(events: DataFrame) -> DataFrame:
    """The lines of the confirmed orders among events in EVENT_COLUMNS."""
    order = F.from_json("data", _ORDER)
    each = (
        events.where(F.col("type") == _CONFIRMED)
        .select("aggregate_id", order.alias("order"))
        .select(
            F.col("aggregate_id").alias("order"),
            "order.customer_id",
            "order.placed_at",
            F.explode("order.lines").alias("line"),
        )
    )
    return each.select(
        "order",
        F.col("customer_id").alias("customer"),
        F.col("placed_at").alias("at"),
        F.col("line.sku").alias("sku"),
        F.col("line.quantity").alias("units"),
        F.col("line.amount_cents").alias("cents"),
    )


def revenue_by_sku_and_cohort(lines: DataFrame) -> DataFrame:
    """sku: string, cohort: date, units: long, cents: long. cohort: the month of the customer's first order."""
    cohorts = lines.groupBy("customer").agg(F.trunc(F.min("at"), "month").alias("cohort"))
    counted = lines.join(cohorts, "customer").groupBy("sku", "cohort")
    return counted.agg(F.sum("units").alias("units"), F.sum("cents").alias("cents"))


def baskets(lines: DataFrame) -> DataFrame:
    """rank: int, first: string, second: string, orders: long.

    The pairs of SKUs that most orders have, TOP_BASKETS of them. A pair replaces the one that had its rank.
    """
    skus = lines.select("order", "sku").distinct()
    first, second = skus.withColumnRenamed("sku", "first"), skus.withColumnRenamed("sku", "second")
    pairs = first.join(second, "order").where("first < second").groupBy("first", "second")
    order = F.desc("orders"), F.col("first"), F.col("second")
    top = pairs.agg(F.count("*").alias("orders")).orderBy(*order).limit(TOP_BASKETS)
    return top.select(F.row_number().over(Window.orderBy(*order)).alias("rank"), "first", "second", "orders")


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
    customers = charges.groupBy("customer").agg(
        F.max("at").alias("at"), F.count("*").alias("frequency"), F.sum("cents").alias("cents")
    )
    recency = F.datediff("last", "at").alias("recency_days")
    scored = customers.crossJoin(charges.agg(F.max("at").alias("last")))
    scored = scored.select("customer", recency, "frequency", "cents")
    for name, order in (("r", F.desc("recency_days")), ("f", F.asc("frequency")), ("m", F.asc("cents"))):
        scored = _scored(scored, name, order)
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
    """segment: string, customers: long, cents: long. All SEGMENTS, also those without a customer."""
    all_of_them = segments.sparkSession.createDataFrame([(name,) for name in SEGMENTS], "segment string")
    counted = segments.groupBy("segment").agg(F.count("*").alias("customers"), F.sum("cents").alias("cents"))
    return all_of_them.join(counted, "segment", "left").na.fill(0)


def _scored(customers: DataFrame, name: str, order: Column) -> DataFrame:
    """With `name`, 1 to 5 by fifths of all customers; equals are ordered by their id, so that every run scores alike.

    As `ntile` has it, but each task ranks a range of them.
    """
    ordered = order, F.col("customer")
    # kept, as the ranges would be others if they were computed again
    ranges = customers.repartitionByRange(*ordered).withColumn("range", F.spark_partition_id()).cache()
    sizes = ranges.groupBy("range").agg(F.count("*").alias("size"))
    before = F.sum("size").over(Window.orderBy("range")) - F.col("size")
    sizes = sizes.select("range", before.alias("before"), F.sum("size").over(Window.partitionBy()).alias("all"))
    rank = F.col("before") + F.row_number().over(Window.partitionBy("range").orderBy(*ordered))
    fifth = F.floor(F.col("all") / _SCORES)
    more = F.col("all") % _SCORES  # fifths have one more
    within = F.ceil((rank - more * (fifth + 1)) / fifth)
    score = F.when(rank <= more * (fifth + 1), F.ceil(rank / (fifth + 1))).otherwise(more + within)
    ranked = ranges.join(F.broadcast(sizes), "range").withColumn(name, score.cast("int"))
    return ranked.drop("range", "before", "all")
