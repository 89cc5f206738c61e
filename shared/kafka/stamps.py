"""When brokers got records, by the time that they have stamped on them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from itertools import zip_longest

from confluent_kafka import Consumer, TopicPartition

from shared.kafka.access import client_config

_ROUND_S = 2.0  # a partition whose leader is away answers nothing
_FETCH_BYTES = 16 * 1024  # a whole batch comes at least, of which one record is wanted

Place = tuple[str, int, int]
"""Topic, partition and offset."""


def stamps(bootstrap: str, places: Iterable[Place]) -> dict[Place, float]:
    """Of the first record at or behind each place, open transactions included, in seconds since the epoch.

    Those places are missing behind which nothing is, or whose leader does not answer.
    """
    by_partition: dict[tuple[str, int], list[Place]] = defaultdict(list)
    for place in sorted(set(places)):
        by_partition[place[:2]].append(place)
    if not by_partition:
        return {}
    config = client_config(bootstrap) | {
        "group.id": "doctor",  # the client asks for one, and never joins it
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.message.max.bytes": _FETCH_BYTES,
        "log_level": 0,
    }
    found: dict[Place, float] = {}
    with closing(Consumer(config)) as consumer:
        for each in zip_longest(*by_partition.values()):  # a consumer reads one place of a partition at a time
            found |= _one_round(consumer, [place for place in each if place is not None])
    return found


def _one_round(consumer: Consumer, places: list[Place]) -> dict[Place, float]:
    found, waiting = {}, {place[:2]: place for place in places}
    consumer.assign([TopicPartition(*place) for place in places])
    consumer.resume([TopicPartition(*tp) for tp in waiting])  # a pause outlives an assignment
    deadline = time.monotonic() + _ROUND_S
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        message = consumer.poll(left_s)
        if message is None or message.topic() is None:
            continue
        tp = (str(message.topic()), int(message.partition() or 0))
        place = waiting.pop(tp, None)
        if place is not None and message.error() is None:
            found[place] = message.timestamp()[1] / 1000
        consumer.pause([TopicPartition(*tp)])
    return found
