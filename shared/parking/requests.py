"""What a version has been asked for and has noted, read from its topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.parking.parked import BEGINS_ID, NOTE_ID, PARKED_CODEC, OperatorRequest, noted_in
from shared.topology.topics import Topology

Begins = Mapping[str, Mapping[str, int]]
"""By source and processor, the first offset that it handles, where that lies ahead of the position; see STOOD, too."""


def noted_begins(brokers: Brokers, topology: Topology) -> Mapping[int, Begins]:
    """As the version has noted them, by partition. Raises BrokersUnavailable."""
    return _noted(brokers, topology, BEGINS_ID)


def noted_topics(brokers: Brokers, topology: Topology) -> Mapping[int, Mapping[str, str]]:
    """The ids of the topics that the version has handled records of, by partition. Raises BrokersUnavailable."""
    return _noted(brokers, topology, NOTE_ID)


def _noted(brokers: Brokers, topology: Topology, id_: str) -> dict[int, dict[str, Any]]:
    changelog = topology.changelog(topology.parked).name
    rows = {number: row for number, key, row in read_all(brokers, changelog) if key == id_.encode()}
    return {number: noted_in(PARKED_CODEC.decode(row).state) for number, row in rows.items() if row is not None}


def operator_requests(brokers: Brokers, topology: Topology) -> Iterator[OperatorRequest]:
    """All committed so far, in order within each partition. Raises BrokersUnavailable."""
    for _, _, value in read_all(brokers, topology.parking.name):
        with suppress(ValidationError):  # the engine has written a dead letter for it
            yield OperatorRequest.model_validate_json(value or b"")
