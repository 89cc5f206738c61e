"""Operators' requests and their notes, read from the topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pydantic import ValidationError

from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.parking.parked import OperatorRequest
from shared.topology.topics import Topology


def operator_requests(brokers: Brokers, topology: Topology) -> Iterator[OperatorRequest]:
    """All committed so far, in order within each partition. Raises BrokersUnavailable."""
    for _, _, value in read_all(brokers, topology.parking.name):
        with suppress(ValidationError):  # the engine has written a dead letter for it
            yield OperatorRequest.model_validate_json(value or b"")
