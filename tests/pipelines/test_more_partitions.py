"""After `repartition`, Spark folds the events to the rows that were carried over, and to those that are made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import consistency
from pipelines.catalog import table_in
from pipelines.session import spark_session
from shared.dev.repartition import repartition
from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from tests.engine.test_repartition import CARTS, CHECKED_OUT, NEW, OLD, Shop, checkout
from tests.waiting import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,  # in short, tests/engine/test_repartition.py compares what was served before
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def test_rows_in_more_partitions_are_the_fold_of_their_events(stack: Stack, tmp_path: Path) -> None:
    provision([each.topology for each in checkout("wide", OLD)], stack.settings)
    shop = Shop("wide", stack, tmp_path)
    shop.open(OLD, delay_s=0.1)
    for cart in CARTS:
        shop.add(cart, "book")
    for cart in CHECKED_OUT:
        shop.check_out(cart)
    eventually(shop.told, lambda told: len(told) == len(CARTS) + len(CHECKED_OUT))
    shop.close()
    repartition(checkout("wide", OLD), stack.settings, NEW, dry_run=False)
    shop.open(NEW, delay_s=0.1)
    left = len(CARTS) - len(CHECKED_OUT)
    try:
        brokers = Brokers(stack.bootstrap)
        eventually(
            lambda: sum(answer[0] == 200 for path, answer in shop.all_shown().items() if "waiting" in path) == left
        )
        with spark_session("repartitioned", cores=1) as spark:
            for name, rows in (("carts", len(CARTS)), ("waiting", left)):
                verdict = consistency.check(spark, brokers, table_in("tests.pipelines.wide", name))
                assert str(verdict) == f"{rows} of {rows} {name} agree"
    finally:
        shop.end()
