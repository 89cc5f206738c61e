"""What a Faust user writes: an agent and a table. It remembers which of a key's numbers it was given, as runs.

[[1, 57], [55, 80], [83, 90]]: 55 to 57 were counted twice, 81 and 82 not at all.

group.py starts it.
"""

from __future__ import annotations

import os

import faust

app = faust.App(
    os.environ["STOCK_NAME"],
    broker=f"kafka://{os.environ['ONEFOLD_BOOTSTRAP']}",
    datadir=f"{os.environ['ONEFOLD_DATA_DIR']}/{os.environ['STOCK_NAME']}-{os.environ['ONEFOLD_INSTANCE']}",
    store="memory://",
    topic_partitions=int(os.environ["STOCK_PARTITIONS"]),
    processing_guarantee=os.environ["STOCK_GUARANTEE"],
    broker_session_timeout=6.0,  # the shortest that a broker allows: a killed worker is missed for so long
    broker_heartbeat_interval=2.0,
)
source = app.topic(os.environ["STOCK_SOURCE"], key_type=str, key_serializer="raw", value_serializer="json")
seen = app.Table("seen", default=list)


@app.agent(source)
async def remember(numbers: faust.types.StreamT[int]) -> None:
    async for key, number in numbers.items():
        *earlier, last = seen[key] or [[number, number - 1]]
        seen[key] = [*earlier, [last[0], number]] if number == last[1] + 1 else [*earlier, last, [number, number]]
        print(f"handled {number} of {key}", flush=True)  # noqa: T201
