"""What a Faust user writes: an agent and a table, everything else as Faust has it (RocksDB, JSON, at least once).

BENCH_SERVICE=s BENCH_SOURCE=topic python -m faust -A bench.sides.stock_faust worker
"""

from __future__ import annotations

import json
import os
import time
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
assigned_at = 0.0


@app.on_partitions_assigned.connect
async def note(*_: Any, **__: Any) -> None:
    global assigned_at
    assigned_at = time.monotonic()


async def tell() -> None:
    """As our engine and the Kafka Streams side do."""
    print(json.dumps({"event": "restored", "took_s": round(time.monotonic() - assigned_at, 2)}), flush=True)


sales = app.Table("sales", default=lambda: {"count": 0, "sum_cents": 0}, on_recover=tell)


@app.agent(source)
async def count(events: faust.types.StreamT[dict[str, Any]]) -> None:
    async for customer, event in events.items():
        before = sales[customer]
        sales[customer] = {
            "count": before["count"] + 1,
            "sum_cents": before["sum_cents"] + event["data"]["amount_cents"],
        }
