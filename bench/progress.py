"""How far a side is, seen from outside and alike for all: the offsets its consumer group has committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

WARM_UP = 0.2  # share of the input that is left out: the start, the first batches and a JVM's compiler
_TICK_S = 0.05
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    handled: int


@dataclass(frozen=True, slots=True)
class Steady:
    """The part of a run that is measured."""

    events: int
    seconds: float

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


class Group:
    """A consumer group reading one topic from its start, the topic written without transactions."""

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        # not AdminClient: its look-up of a group's offsets ends the process (SIGSEGV) while the coordinator moves
        self._onlooker = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "log_level": 0})
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]

    def handled(self) -> int:
        """Events up to the committed offsets; those of a transaction that is still open are not counted."""
        try:
            found = self._onlooker.committed(self._partitions, timeout=_TIMEOUT_S)
        except KafkaException:
            return 0  # the coordinator is not there yet
        return sum(max(0, each.offset) for each in found)

    def samples(self, total: int, limit_s: float, alive: Callable[[], None]) -> Iterator[Sample]:
        """One per change of what is handled, the first at 0; ends at `total`, or `limit_s` after the first progress.

        alive: raises when the side is dead.
        """
        last = Sample(time.monotonic(), self.handled())
        yield last
        began: float | None = None
        while last.handled < total and (began is None or time.monotonic() - began < limit_s):
            time.sleep(_TICK_S)
            alive()
            now = Sample(time.monotonic(), self.handled())
            if now.handled > last.handled:
                began = began or now.at_s
                yield now
                last = now


def steady(samples: Sequence[Sample], total: int) -> Steady:
    """From the first commit after the warm-up to the last before the input's end.

    A run too short for that is taken whole, start-up included.
    """
    warm = samples[-1].handled * WARM_UP
    inner = [sample for sample in samples if warm <= sample.handled < total]
    first, last = (inner[0], inner[-1]) if len(inner) > 2 else (samples[0], samples[-1])
    return Steady(last.handled - first.handled, last.at_s - first.at_s)
