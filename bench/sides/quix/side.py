"""What a Quix Streams user writes, exactly once. Run by an interpreter that has it; its pins clash with ours.

BENCH_SERVICE=s BENCH_SOURCE=topic python side.py
"""

from __future__ import annotations

import os
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]

app = Application(
    broker_address=os.environ["ONEFOLD_BOOTSTRAP"],
    consumer_group=os.environ["BENCH_SERVICE"],
    state_dir=os.environ["ONEFOLD_DATA_DIR"] + "/" + os.environ["BENCH_SERVICE"],
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=1.0,  # not its default of 5: its progress is seen by its commits
)


def count(event: dict[str, Any], state: Any) -> None:
    before = state.get("sales", default={"count": 0, "sum_cents": 0})
    after = {"count": before["count"] + 1, "sum_cents": before["sum_cents"] + event["data"]["amount_cents"]}
    state.set("sales", after)


source = app.topic(os.environ["BENCH_SOURCE"], key_deserializer="str", value_deserializer="json")
sales = app.dataframe(source).update(count, stateful=True)
app.run()
