"""What a Faust user writes: an agent and a table, everything else as Faust has it (RocksDB, JSON, at least once).

BENCH_SERVICE=s BENCH_SOURCE=topic python -m faust -A bench.sides.stock_faust worker
"""

from __future__ import annotations

import os
from typing import Any

import faust

from bench.topology import PARTITIONS

app = faust.App(
    os.environ["BENCH_SERVICE"],
    broker=f"kafka://{os.environ['ONEFOLD_BOOTSTRAP']}",
    datadir=os.environ["ONEFOLD_DATA_DIR"] + "/" + os.environ["BENCH_SERVICE"],
    store="rocksdb://",
    topic_partitions=PARTITIONS,
)
source = app.topic(os.environ["BENCH_SOURCE"], key_type=str, key_serializer="raw", value_serializer="json")
sales = app.Table("sales", default=lambda: {"count": 0, "sum_cents": 0})


@app.agent(source)
async def count(events: faust.types.StreamT[dict[str, Any]]) -> None:
    async for customer, event in events.items():
        before = sales[customer]
        sales[customer] = {
            "count": before["count"] + 1,
            "sum_cents": before["sum_cents"] + event["data"]["amount_cents"],
        }
