"""What operators wished, as it lies in the topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pydantic import ValidationError

from shared.kafka.history import History
from shared.kafka.spans import read_all
from shared.parking import Wish
from shared.topology import Topology


def wishes(history: History, topology: Topology) -> Iterator[Wish]:
    """All that are committed by now, each partition's in their order. Raises HistoryUnavailable."""
    for _, _, value in read_all(history, topology.parking.name):
        with suppress(ValidationError):  # the engine has made a dead letter of it
            yield Wish.model_validate_json(value or b"")
