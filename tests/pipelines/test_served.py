"""What Spark counts comes back over a topic and is served like any other table."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pipelines import consistency, results
from pipelines.catalog import table_of
from pipelines.sinks import to_topic
from services.inventory import topology as inventory
from services.orders import topology as orders
from services.sales import topology as sales
from shared.dev.worker import Worker
from shared.domain.ids import AGGREGATE_ID_MAX_BYTES
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from tests.pipelines.conftest import read_records
from tests.waiting import eventually

RETENTION = "cohort date, months int, customers long, share double"
LONG_SKU = "s" * AGGREGATE_ID_MAX_BYTES


def test_a_record_may_be_as_large_as_its_topic_allows(spark: Any, bootstrap: str) -> None:
    large = NewTopic("large.records.v1", 1, config={"max.message.bytes": "3000000"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([large])[large.topic].result(30)
    value = os.urandom(2_000_000)
    to_topic(spark.createDataFrame([(b"key", value)], "key binary, value binary").write, bootstrap, large.topic).save()
    assert [record.value for record in read_records(bootstrap, large.topic)] == [value]


@pytest.mark.long  # in short, how they are written, above
def test_results_are_served_by_a_table(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    settings = Settings(bootstrap=bootstrap, data_dir=tmp_path / "stores", log_format="json")
    provision([results.TOPOLOGY, inventory.TOPOLOGY, orders.TOPOLOGY, sales.TOPOLOGY], settings)

    def count(*rows: tuple[date, int, int, float]) -> None:
        results.write(spark.createDataFrame(rows, RETENTION), bootstrap, "retention", "cohort", "months")

    january = date(1997, 1, 1)
    count((january, 0, 7846, 1.0), (january, 1, 1000, 0.1))
    count((january, 1, 1178, 0.15))
    skus = spark.createDataFrame([(LONG_SKU, january, 1, 100)], "sku string, cohort date, units long, cents long")
    results.write(skus, bootstrap, "sku", "sku", "cohort")
    worker = Worker("sales", "1", settings, tmp_path / "sales.log")
    worker.start()
    try:
        for months, customers in ((0, 7846), (1, 1178)):
            insight = f"retention:1997-01-01:{months}?until=figures.customers:{customers}&wait=30"
            found = httpx.get(f"{worker.url}/sales/insights/{insight}", timeout=60).json()
        assert found["figures"] == {"cohort": "1997-01-01", "months": 1, "customers": 1178, "share": 0.15}
        listed = httpx.get(f"{worker.url}/sales/insights?kind=retention&complete=true").json()["items"]
        assert [item["figures"]["customers"] for item in listed] == [7846, 1178]
        sold = f"{worker.url}/sales/insights?kind=sku&complete=true"
        eventually(lambda: [each["figures"]["sku"] for each in httpx.get(sold).json()["items"]], [LONG_SKU].__eq__)
        verdict = consistency.check(spark, Brokers(bootstrap), table_of("sales", "insights"), url=worker.url)
        assert (verdict.differ, verdict.asked["also over HTTP"]) == (0, verdict.agree)
    finally:
        worker.stop()
