"""How far standbys are behind: counted from ends that the brokers gave shortly before, not from what was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from shared.engine.holdings import Holdings
from shared.kafka.ends import LeaderEnds
from shared.runtime.clock import elapsed_s
from shared.tables.replicas import Replica
from shared.topology.topics import Table

LAG_OF_S = 1.0  # how long before a read the brokers may have been asked for the end that its lag is counted from
LAG_WITHIN_S = 2.0  # then the read goes to a worker that knows more, which has to answer within peers.ANSWER_S


class Lags:
    """leaders: where their partitions end."""

    def __init__(self, holdings: Holdings, leaders: LeaderEnds, in_lease: Callable[[], bool]) -> None:
        self.leaders = leaders
        self._holdings = holdings
        self._in_lease = in_lease
        self._learning: dict[int | None, asyncio.Future[None]] = {}  # by leader: the question where its partitions end

    async def of(self, table: Table, partition: int) -> int | None:
        """How many records the standby held here is behind those that its changelog had LAG_OF_S ago.

        Asks the brokers if they were not asked since. None when there is no standby, or they do not answer.
        """
        since = elapsed_s() - LAG_OF_S
        with suppress(TimeoutError):
            async with asyncio.timeout(LAG_WITHIN_S):
                for _ in range(2):  # what is asked already may have been asked too early
                    if (replica := self._standby(table, partition)) and replica.end_known_at < since:
                        await asyncio.shield(self._asked(self.leaders.leader(replica.changelog)))
        replica = self._standby(table, partition)
        return replica.lag if replica is not None and replica.end_known_at >= since else None

    def measure(self) -> None:
        """Ask each leader of a changelog that is read here."""
        for leader in {self.leaders.leader(place) for place in self._holdings.followed()}:
            self._asked(leader)

    async def stop(self) -> None:
        for asked in self._learning.values():
            asked.cancel()
        await self.leaders.stop()

    def _standby(self, table: Table, partition: int) -> Replica | None:
        replica = self._holdings.replicas.of(table, partition)
        return None if replica is None or replica.ours or not self._in_lease() else replica

    def _asked(self, leader: int | None) -> asyncio.Future[None]:
        """Done once the leader has been asked where its changelogs end. All who wait for it share one question."""
        if (asked := self._learning.get(leader)) is None or asked.done():
            asked = self._learning[leader] = asyncio.ensure_future(self._learn(leader))
        return asked

    async def _learn(self, leader: int | None) -> None:
        """Not from the reader: it says nothing of one leader that it can't reach, nor while a take-over or a commit
        waits.
        """
        asked_at, held = elapsed_s(), self._holdings.replicas.held
        led = [place for place in self._holdings.followed() if self.leaders.leader(place) == leader]
        for place, end in (await self.leaders.of(leader, led)).items():
            if replica := held.get(place):
                replica.learn_end(end, asked_at)
