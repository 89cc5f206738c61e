"""What `copy_batches` keeps: every record with all that it has, in its order, once."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer

from shared.kafka.access import client_config
from shared.kafka.brokers import Brokers, BrokersUnavailable
from shared.kafka.producer import producer_config
from shared.kafka.spans import Span, WholeRecord, read_whole
from shared.kafka.tokens import aiokafka_config
from shared.kafka.verbatim import _Copy, copy_batches
from shared.operations.provision import TopicSpec, create_topics
from shared.runtime.positions import Place

pytestmark = pytest.mark.broker

PARTITIONS = 3
ENDS = {0: 2_000, 1: 300, 2: 0}
_NUMBERS = count()


class Pair:
    """A topic of batches of a few records, and an empty one."""

    def __init__(self, bootstrap: str, compression: str = "none") -> None:
        name = f"verbatim-{next(_NUMBERS)}"
        self.bootstrap, self.source, self.target = bootstrap, f"{name}.from", f"{name}.to"
        settings = {"message.timestamp.type": "CreateTime"}
        create_topics(dict.fromkeys((self.source, self.target), TopicSpec(PARTITIONS, 1, settings)), bootstrap)
        producer = Producer(producer_config(bootstrap, batch_num_messages=70, compression_type=compression))
        for number, end in ENDS.items():
            for each in range(end):
                value = None if each % 5 == 0 else b"%d" % each * 20
                headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None)] if each % 3 == 0 else []
                producer.produce(self.source, value, b"k%d" % (each % 7), number, timestamp=each + 1, headers=headers)
        assert producer.flush(30) == 0

    def copy(self) -> int:
        told: list[int] = []
        copy_batches(aiokafka_config(self.bootstrap, None), self.source, self.target, ENDS, told.append)
        return sum(told)

    def records(self, topic: str) -> list[list[WholeRecord]]:
        ends, client = Brokers(self.bootstrap).settled_ends(topic), client_config(self.bootstrap)
        return [
            [*read_whole(client, Span(Place(topic, number), 0, end))] if end else []
            for number, end in sorted(ends.items())
        ]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_copy_has_the_same_records_at_the_same_offsets(bootstrap: str, compression: str) -> None:
    pair = Pair(bootstrap, compression)
    assert pair.copy() == sum(ENDS.values())
    found = pair.records(pair.target)
    assert found == pair.records(pair.source)
    assert [len(records) for records in found] == [*ENDS.values()]


def test_a_batch_that_is_sent_again_is_not_written_again(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _Copy._answer

    async def twice(self: _Copy, place: Place, request: Any) -> Any:
        await answer(self, place, request)
        return await answer(self, place, request)

    monkeypatch.setattr(_Copy, "_answer", twice)
    pair = Pair(bootstrap)
    pair.copy()
    assert pair.records(pair.target) == pair.records(pair.source)


def test_a_topic_that_is_not_there_is_named(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kafka.verbatim.SETTLE_DEADLINE_S", 1.0)
    pair = Pair(bootstrap)
    pair.target = "verbatim-nowhere"
    with pytest.raises(BrokersUnavailable, match=r"verbatim-nowhere/[01]: "):
        pair.copy()
