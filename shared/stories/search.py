"""Finds a story: a record of it first, then what came before and after, until no cause and no timer is missing.

Each look reads every record of a time, so that nothing has to be known of what policies do, or did when they were
others. It costs what is in the log around the story, however old that is; to find an id alone costs all that is newer.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from shlex import quote
from typing import NamedTuple

from pydantic_core import to_json

from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Bounds
from shared.kafka.reader import ReadRecord
from shared.kafka.search import LogSearch
from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories.story import Letter, Step, Story, Told, as_steps, instant, letter, pending, told, unexplained
from shared.topology.topics import HOUR_MS, Topology

NEAR_MS = 2_000  # how far the first look reaches, either way
WIDER = 6  # each look reaches so many times as far as the one before
QUIET_MS = 60_000  # a story has ended when nothing of it came for so long, and for ten times its longest wait
RECORDS_MAX = (
    20_000  # with dead letters; more than any process leads to: somebody uses one correlation id for everything
)

Offsets = Mapping[Place, int]

_PLACE = re.compile(r"([a-z0-9.-]{1,249})/([0-9]{1,6})[/@]([0-9]{1,18})")


class NoStory(OnefoldError):
    """Nothing that can be read has this id, or lies at this place."""


class NotReached(OnefoldError):
    """The time was up before anything with this id was found."""


class Progress(NamedTuple):
    """read: records so far, `per_s` of them a second. left: how many there are still, at most."""

    read: int
    per_s: float
    left: int

    @property
    def left_s(self) -> float:
        return self.left / self.per_s if self.per_s else math.inf


class _TimeIsUp(Exception):
    """What was found so far is all there will be."""


def find_story(
    bootstrap: str,
    topologies: Iterable[Topology],
    text: str,
    *,
    now_ms: int,
    within_s: float = math.inf,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[Progress], object] = id,
) -> Story:
    """The story that `text` belongs to: a correlation id, a message's id, or a place, `topic/partition/offset`.

    now_ms: the brokers' time, since the epoch. stopped: asked every now and then; if so, it is as after `within_s`.
    tell: told every now and then how far the search is.
    Raises NoStory, NotReached after `within_s`, and BrokersUnavailable.
    """
    with LogSearch(bootstrap) as log:
        return _Search(log, topologies, now_ms, lambda seconds: seconds > within_s or stopped(), tell).story(text)


class _Search:
    def __init__(
        self,
        log: LogSearch,
        topologies: Iterable[Topology],
        now_ms: int,
        is_up: Callable[[float], bool],
        tell: Callable[[Progress], object],
    ) -> None:
        self._log = log
        self._began, self._is_up = time.monotonic(), is_up
        self._now_ms = now_ms
        self._tell = tell
        topologies = list(topologies)
        self._repeatable_ms = max((each.idempotency_hours for each in topologies), default=0) * HOUR_MS
        owned = [(each.dead_letters.name, [topic.name for topic in each.topics]) for each in topologies]
        self._dead = {dead for dead, _ in owned}
        self._topics = self._dead.union(*(names for _, names in owned))
        bounds = log.bounds(self._topics)
        self._absent = self._topics - {place.topic for place in bounds}
        self._starts: Offsets = {place: found.start for place, found in bounds.items()}
        self._ends = _ends(bounds)
        self._left = sum(self._ends.values()) - sum(self._starts.values())
        self._found: dict[tuple[Place, int], Told] = {}
        self._letters: dict[tuple[Place, int], tuple[Letter, int]] = {}

    def story(self, text: str) -> Story:
        found = _PLACE.fullmatch(text)
        try:
            if found is not None and found[1] in self._topics:
                seed = self._lies_at(Place(found[1], int(found[2])), int(found[3]))
            else:
                seed = self._newest(text)
        except _TimeIsUp:
            raise self._not_reached(text) from None
        return self._around(seed)

    def _lies_at(self, place: Place, offset: int) -> Told:
        span = Span(place, offset, min(offset + 1, self._ends.get(place, 0)))
        for record in self._read([span] if offset >= self._starts.get(place, 0) else [], ""):
            if (found := told(record)) is not None:
                return found
        raise NoStory(
            f"no message lies at {place}/{offset}; fix: name one of a commands, events or "
            "timers topic that retention has not removed"
        )

    def _newest(self, text: str) -> Told:
        """A record that has `text` as one of its ids. The log is read backwards."""
        upper, reach_ms = self._ends, NEAR_MS
        while _between(self._starts, upper):
            lower = self._at(self._now_ms - reach_ms, upper)
            for record in self._records(text, lower, upper):
                found = told(record)
                if found and text in (found.id, found.body.correlation_id, found.body.causation_id):
                    return found
            upper, reach_ms = lower, reach_ms * WIDER
        raise NoStory(
            f"nothing in the log has the id {text!r}; fix: give the Idempotency-Key or the id of a message, or a "
            "place, TOPIC/PARTITION/OFFSET"
        )

    def _not_reached(self, text: str) -> NotReached:
        far = self._progress()
        return NotReached(
            f"{text!r} is not among the newest {far.read:,} records, read in {self._seconds:.1f} s; {far.left:,} are "
            f"left, which takes {far.left_s:,.0f} s at most; fix: `python3 dev.py story {quote(text)}`, which takes "
            "its time, or give a place instead, TOPIC/PARTITION/OFFSET"
        )

    def _around(self, seed: Told) -> Story:
        correlation_id = seed.body.correlation_id
        self._found[Place(seed.record.topic, seed.record.partition), seed.record.offset] = seed
        until_ms, reached = None, False
        with suppress(_TimeIsUp):
            until_ms, reached = self._gather(seed, correlation_id), True
        found = self._messages
        steps = as_steps(found, self._letters.values())
        circular = len(found) - len(steps)
        return Story(
            correlation_id=correlation_id,
            whole=reached and not (self._unread or circular or unexplained(found) or pending(found)),
            read_until=None if until_ms is None else instant(until_ms),
            unread=tuple(sorted(self._unread)),
            circular=circular,
            records_read=self._log.read,
            seconds=round(self._seconds, 3),
            steps=tuple(steps),
        )

    def _gather(self, seed: Told, correlation_id: str) -> int | None:
        """Keeps all records of the story. Returns up to when the topics were read; None if to their ends."""
        back_ms, until_ms = NEAR_MS, seed.at + NEAR_MS
        low, high = self._at(seed.at - back_ms, self._ends), self._at(until_ms, self._ends)
        self._keep(correlation_id, low, high)
        # what follows comes first: where causes can't be read, it is all there is
        high, until_ms = self._look_on(seed, correlation_id, high, until_ms)
        if self._repeats_from() < math.inf and not _between(high, self._ends):
            # its effect may have been in a transaction that ends at this moment: brokers answer before it can be read
            self._ends = {**high, **_ends(self._log.bounds(self._topics - self._absent))}
            self._keep(correlation_id, high, self._ends)
            high = self._ends
        while _between(self._starts, low) and (self._lacks_causes() or seed.at - back_ms > self._repeats_from()):
            back_ms *= WIDER
            lower = self._at(seed.at - back_ms, low)
            self._keep(correlation_id, lower, low)
            low = lower
        high, until_ms = self._look_on(seed, correlation_id, high, until_ms)
        return until_ms if _between(high, self._ends) else None

    def _look_on(self, seed: Told, correlation_id: str, high: Offsets, until_ms: int) -> tuple[Offsets, int]:
        """Keeps what follows, until no more is to be expected. high, until_ms, and the result: how far was read."""
        while _between(high, self._ends):
            goal_ms = self._quiet_from()
            if until_ms >= goal_ms:
                if not pending(self._messages):
                    break
                goal_ms = seed.at + (until_ms - seed.at) * WIDER
            higher = self._at(goal_ms, self._ends)
            self._keep(correlation_id, high, higher)
            high, until_ms = higher, goal_ms
        return high, until_ms

    @property
    def _unread(self) -> Set[str]:
        return self._absent | self._log.refused

    def _lacks_causes(self) -> bool:
        """Whether a cause was not found that can be read, as far as that is known."""
        found = self._messages
        if self._unread and any(each.body.causation_id is None for each in found):
            return False
        missing = unexplained(found)
        return any(each.body.causation_id in missing and not self._is_hidden(each) for each in found)

    def _is_hidden(self, effect: Told) -> bool:
        """Whether the cause of an event is a command of its service, whose commands can't be read."""
        commands = effect.record.topic.split(".")[0] + ".commands."
        return not effect.is_command and any(topic.startswith(commands) for topic in self._unread)

    def _repeats_from(self) -> float:
        """How early a command can lie that one without an effect repeats, which so has none; in ms since the epoch."""
        found = self._messages
        parked = {(Place(dead.topic, dead.partition), dead.offset) for dead, _ in self._letters.values()}
        told_of = {each.body.causation_id for each in found} | {
            self._found[at].id for at in parked & self._found.keys()
        }
        roots = [each for each in found if each.is_command and each.body.causation_id is None]
        return min((each.at for each in roots if each.id not in told_of), default=math.inf) - self._repeatable_ms

    def _quiet_from(self) -> int:
        """When nothing more can be expected if nothing more has come by then."""
        steps = as_steps(self._messages)
        # without timers that came due: their delay was not the system's
        waits = [each.waited_ms or 0 for each in steps if each.cause is None or not _is_due(each, of=steps[each.cause])]
        longest_ms = max(waits, default=0)
        return max(each.at for each in self._messages) + max(QUIET_MS, 10 * longest_ms)

    @property
    def _messages(self) -> Sequence[Told]:
        return list(self._found.values())

    def _keep(self, correlation_id: str, lower: Offsets, upper: Offsets) -> None:
        for record in self._records(correlation_id, lower, upper):
            at = Place(record.topic, record.partition), record.offset
            if record.topic in self._dead:
                if (dead := letter(record)) is not None:
                    self._letters[at] = dead, record.timestamp
            elif (found := told(record)) is not None and found.body.correlation_id == correlation_id:
                self._found[at] = found
            if len(self._found) + len(self._letters) >= RECORDS_MAX:
                raise _TimeIsUp

    def _records(self, text: str, lower: Offsets, upper: Offsets) -> Iterator[ReadRecord]:
        self._left = sum(upper[each] - start for each, start in self._starts.items())
        return self._read([Span(each, lower[each], end) for each, end in upper.items()], text)

    def _read(self, spans: Sequence[Span], text: str) -> Iterator[ReadRecord]:
        """Those whose value holds `text`, or may in full. Raises _TimeIsUp."""
        before = self._log.read
        for record in self._log.records_with(spans, _as_written(text)):
            if record is not None:
                yield record
                continue
            self._left -= self._log.read - before
            before = self._log.read
            self._tell(self._progress())
            self._look_up()

    def _look_up(self) -> None:
        if self._is_up(self._seconds):
            raise _TimeIsUp

    def _at(self, at_ms: int, below: Offsets) -> Offsets:
        """The offsets from that time on, within `below` and the log. Raises _TimeIsUp."""
        self._look_up()
        if at_ms <= 0:  # without asking: retention may have removed what was the first record
            return self._starts
        if at_ms >= self._now_ms:  # without asking; if the clock here is late, more is read
            return below
        found = self._log.offsets_at(below, at_ms)
        return {each: max(start, found[each]) for each, start in self._starts.items()}

    def _progress(self) -> Progress:
        return Progress(self._log.read, self._log.read / max(self._seconds, 0.001), max(0, self._left))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began


def _is_due(step: Step, of: Step) -> bool:
    """Whether it is a command that a timer has sent, or the timer written again. of: its cause."""
    return step.id == of.id and of.kind == "timers"


def _as_written(text: str) -> Sequence[bytes]:
    """`text` in a record, and in a dead letter, which has the record as text, or a part of it without `text`."""
    written = to_json(text)[1:-1]
    return list(dict.fromkeys([written, json.dumps(written.decode())[1:-1].encode(), b'"of_bytes": ']))


def _ends(bounds: Mapping[Place, Bounds]) -> Offsets:
    return {place: found.stable for place, found in bounds.items()}


def _between(lower: Offsets, upper: Offsets) -> bool:
    return any(lower[each] < end for each, end in upper.items())
