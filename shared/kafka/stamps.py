"""When brokers got records, by the time that they have stamped on them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from itertools import zip_longest

from confluent_kafka import Consumer, TopicPartition

from shared.kafka.access import IN_NO_GROUP, client_config
from shared.runtime.positions import Place

_ROUND_S = 2.0  # a partition whose leader is away answers nothing
_FETCH_BYTES = 16 * 1024  # a whole batch comes at least, of which one record is wanted


def stamps(bootstrap: str, offsets: Iterable[tuple[Place, int]]) -> dict[tuple[Place, int], float]:
    """Of the first record at or behind each offset, open transactions included, in seconds since the epoch.

    Those are missing behind which nothing is, or whose leader does not answer.
    """
    by_place: dict[Place, list[tuple[Place, int]]] = defaultdict(list)
    for each in sorted(set(offsets)):
        by_place[each[0]].append(each)
    if not by_place:
        return {}
    config = {
        **client_config(bootstrap),
        **IN_NO_GROUP,
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "fetch.message.max.bytes": _FETCH_BYTES,
        "log_level": 0,
    }
    found: dict[tuple[Place, int], float] = {}
    with closing(Consumer(config)) as consumer:
        for some in zip_longest(*by_place.values()):  # a consumer reads a partition from one offset at a time
            found |= _one_round(consumer, dict(filter(None, some)))
    return found


def _one_round(consumer: Consumer, waiting: dict[Place, int]) -> dict[tuple[Place, int], float]:
    found = {}
    consumer.assign([TopicPartition(*place, offset) for place, offset in waiting.items()])
    consumer.resume([TopicPartition(*place) for place in waiting])  # a pause outlives an assignment
    deadline = time.monotonic() + _ROUND_S
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        message = consumer.poll(left_s)
        if message is None or message.topic() is None:
            continue
        place = Place(str(message.topic()), int(message.partition() or 0))
        offset = waiting.pop(place, None)
        if offset is not None and message.error() is None:
            found[place, offset] = message.timestamp()[1] / 1000
        consumer.pause([TopicPartition(*place)])
    return found
