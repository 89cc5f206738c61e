"""A version's turn in each partition: it is given to another version, and taken, in one transaction with the positions.

While it has no turn, a version shadows: it reads on for its rows, and does nothing else. What another one needs to act
from there, it has by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

import structlog

from shared.engine.asking import Asking
from shared.engine.filling import Filling
from shared.engine.following import Following
from shared.engine.holdings import Holdings
from shared.kafka.offsets import Offsets
from shared.parking.parked import processor_of_id
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place
from shared.runtime.routes import TURN, Role, Routes, Turn

log = structlog.get_logger(__name__)

RENEWED_S = 3_600.0  # brokers forget a live group's positions in topics that it does not subscribe to (ADR 39)

TOGETHER_S = 0.25  # turns that are ready wait so long for others: after each commit of some, all is taken over again


class Turns:
    def __init__(
        self,
        holdings: Holdings,
        filling: Filling,
        routes: Routes | None,
        offsets: Offsets,
        ask: Asking,
    ) -> None:
        self._holdings = holdings
        self._filling = filling
        self._routes = routes
        self._offsets = offsets
        self._ask = ask
        self._ends: dict[tuple[int, int], Mapping[Place, int]] = {}  # of what is followed, by partition and turn
        self._told: set[tuple[int, int]] = set()
        self._renewed: dict[int, float] = {}  # when, by partition, by `elapsed_s`
        self._ready_since: float | None = None  # some to take; others are not

    def to_give(self) -> list[int]:
        """The partitions in which another version is to act; not those of a turn that `rebuild` has gone on from."""
        own, routes = self._holdings.topology.version, self._routes
        if routes is None or not routes.read or routes.active is None or routes.active.version == own:
            return []
        restored = self._holdings.restored()
        return [
            number
            for number, role in self._holdings.roles.items()
            if role.acts and routes.has_turn(own, number) and number in restored and not self._is_kept(number, role)
        ]

    def _is_kept(self, number: int, role: Role) -> bool:
        """Whether processors that act have parked records: another version has not read these."""
        acting = {each.name for each in self._holdings.own if each.writes}
        parked = acting.intersection(map(processor_of_id, self._filling.parking(number).ids))
        if parked:
            self._tell_once(number, role, f"it keeps its turn: records of {min(parked)} are parked")
        return bool(parked)

    def renew(self) -> None:
        """Put into the batch, once in a while, what the group has said of its turns."""
        now, routes = elapsed_s(), self._holdings.topology.routes.name
        for number, role in self._holdings.roles.items():
            if role != Role() and now - self._renewed.get(number, -inf) >= RENEWED_S:
                self._filling.batch.advance(Place(routes, number), role.committed, 0)
                self._renewed[number] = now

    def give(self, numbers: Iterable[int]) -> None:
        """Put into the batch, which is empty, that these turns are given. They are not served any more."""
        batch, topology = self._filling.batch, self._holdings.topology
        for number in numbers:
            assert self._routes is not None
            assert self._routes.active is not None
            parking, role, last = self._filling.parking(number), self._holdings.roles[number], self._routes.turn(number)
            turn = Turn(
                number=max(role.number, last.number if last else 0) + 1,
                version=self._routes.active.version,
                giver=topology.version,
                at={place.topic: source.position for place, source in self._holdings.of(number)},
                begins=parking.begins,
            )
            batch.write(topology.routes.name, TURN, turn.model_dump_json().encode(), number)
            given = Role(turn.number, acts=False)
            batch.advance(Place(topology.routes.name, number), given.committed, 0)
            self._holdings.roles = {**self._holdings.roles, number: given}
            for place, source in self._holdings.of(number):
                batch.advance(place, source.position, 0)
            log.info("stops acting", partition=number, turn=turn.number, version=turn.version)

    async def to_take(self) -> list[tuple[int, Turn]]:
        """Those that are ours, with their partitions, once rows here include all that their giver has done.

        Raises OffsetsUnknown.
        """
        given = list(self._given())
        if new := [(number, turn.number) for number, turn in given if (number, turn.number) not in self._ends]:
            followed = {each: [place for place, _ in self._holdings.followed_in(each[0])] for each in new}
            # behind all that the givers have written, as they write no more
            ends = await self._ask(self._offsets.ends, [place for places in followed.values() for place in places])
            self._ends |= {each: {place: ends[place] for place in places} for each, places in followed.items()}
        ready = [(number, turn) for number, turn in given if self._has_caught_up(number, turn)]
        now, left = elapsed_s(), len(ready) < len(given)
        since = self._ready_since = (self._ready_since or now) if ready and left else None
        return ready if since is None or now - since >= TOGETHER_S else []

    def _given(self) -> Iterator[tuple[int, Turn]]:
        """The turns that are ours and not taken yet, with their partitions, once what is parked there is known."""
        for number in self._holdings.restored() & self._holdings.roles.keys():
            role = self._holdings.roles[number]
            turn = None if self._routes is None or role.acts else self._routes.turn(number)
            if turn is not None and turn.number > role.number and turn.version == self._holdings.topology.version:
                yield number, turn

    def _has_caught_up(self, number: int, turn: Turn) -> bool:
        own, followed = self._holdings.of(number), self._holdings.followed_in(number)
        ends = self._ends[number, turn.number]
        names = {each.name for _, source in followed for each in source.processors if isinstance(each, Following)}
        if parked := names.intersection(map(processor_of_id, self._filling.parking(number).ids)):
            self._tell_once(number, self._holdings.roles[number], f"it can't act: records of {min(parked)} are parked")
            return False
        ends = {**{place: turn.at.get(place.topic, 0) for place, source in own if source.processors}, **ends}
        return all(self._holdings.sources[place].position >= end for place, end in ends.items())

    def take(self, turns: Iterable[tuple[int, Turn]]) -> None:
        """Put into the batch, which is empty, that these are taken, and where all goes on."""
        batch, topology = self._filling.batch, self._holdings.topology
        for number, turn in turns:
            for place, source in self._holdings.of(number):
                acts = any(each.writes for each in self._holdings.processors[place.topic])
                batch.advance(place, turn.at.get(place.topic, source.position) if acts else source.position, 0)
            batch.advance(Place(topology.routes.name, number), Role(turn.number, acts=True).committed, 0)
            parking = self._filling.parking(number)
            parking.note_begins(number, {**parking.begins, **turn.begins})
            log.info("acts from now on", partition=number, turn=turn.number, giver=turn.giver)

    def _tell_once(self, number: int, role: Role, why: str) -> None:
        if (number, role.number) not in self._told:
            self._told.add((number, role.number))
            log.warning(why, partition=number, fix="retry or discard them")
