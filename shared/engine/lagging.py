"""Records that nobody waits for, set aside for a moment, so that the next command does not wait for their commit.

A worker's own events come back to it, for its history and its views. Handled at once, those of each command would have
a commit of their own, which the next command waits for; in its commit, they would be more partitions to write to.
"""

from __future__ import annotations

from shared.engine.holdings import Holdings
from shared.kafka.reader import ReadRecord
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place

LAG_S = 0.1  # how long a record may wait


class Lagging:
    """records: by partition, in their order."""

    def __init__(self, holdings: Holdings) -> None:
        self.records: dict[Place, list[ReadRecord]] = {}
        self._holdings = holdings
        self._due_at = 0.0

    def exchange(self, fetched: dict[Place, list[ReadRecord]], enough: int) -> dict[Place, list[ReadRecord]]:
        """`fetched` without what may wait, and with all that has waited once it is due, or `enough` for a batch."""
        for place in [place for place in fetched if place.topic in self._holdings.may_lag]:
            if not self.records:
                self._due_at = elapsed_s() + LAG_S
            self.records.setdefault(place, []).extend(fetched.pop(place))
        if self.records and self._are_due(enough):
            fetched |= self.records
            self.records = {}
        return fetched

    def _are_due(self, enough: int) -> bool:
        return (
            elapsed_s() >= self._due_at
            or sum(map(len, self.records.values())) >= enough
            or self._holdings.is_lag_awaited
        )
