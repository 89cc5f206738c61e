"""Look-ups of offsets: what counts as a record, and that they work again after their broker was lost and came back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.dev.embedded import EmbeddedKafka
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.operations.provision import provision
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology
from tests.waiting import eventually

pytestmark = pytest.mark.broker

EVENTS = Topic("orders.events.v1")
TOPOLOGY = Topology("orders", (EVENTS,), partitions=8)
PLACES = [Place(EVENTS.name, partition) for partition in range(TOPOLOGY.partitions)]


def test_what_was_aborted_is_no_record(bootstrap: str, topic: str, put: Callable[..., None]) -> None:
    offsets, both = Offsets(bootstrap), [Place(topic, 0), Place(topic, 1)]
    assert not offsets.any_records(both)
    put(b"a", abort=True)
    assert offsets.ends(both)[Place(topic, 0)]
    assert not offsets.any_records(both)
    put(b"b", partition=1)
    assert offsets.any_records(both)


@pytest.mark.long
def test_a_broker_that_came_back_answers_look_ups_again(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "data", tmp_path / "logs") as kafka:
        provision([TOPOLOGY], Settings(bootstrap=kafka.bootstrap))
        offsets = Offsets(kafka.bootstrap)
        assert _asked(offsets)
        kafka.kill(1)
        assert not _asked(offsets)
        kafka.restart(1)
        eventually(lambda: _asked(offsets))


def _asked(offsets: Offsets) -> bool:
    try:
        committed, ends = offsets.committed("orders", PLACES), offsets.ends(PLACES)
    except OffsetsUnknown:
        return False
    return committed == dict.fromkeys(PLACES) and ends == dict.fromkeys(PLACES, 0)
