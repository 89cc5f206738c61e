"""What operators wished, as it lies in the topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pydantic import ValidationError

from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.parking import Wish
from shared.topology import Topology


def wishes(brokers: Brokers, topology: Topology) -> Iterator[Wish]:
    """All that are committed by now, each partition's in their order. Raises BrokersUnavailable."""
    for _, _, value in read_all(brokers, topology.parking.name):
        with suppress(ValidationError):  # the engine has made a dead letter of it
            yield Wish.model_validate_json(value or b"")
