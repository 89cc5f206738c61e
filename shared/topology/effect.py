"""A call outside as an aggregate: what is to be sent, which attempt is under way, and what came of it.

Policies of other services request one, the runner attempts it and says what came of it, timers go on, and a person
decides about what is lost or given up. Policies and timers may repeat their commands, and come late.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, assert_never, get_args

from pydantic import Field, create_model

from shared.domain.decider import Decider
from shared.domain.envelope import EventEnvelope
from shared.domain.errors import DomainError
from shared.domain.message import Command, Event, Int64, Message, Part
from shared.domain.state import State
from shared.domain.times import Instant
from shared.topology.declaration import Service
from shared.topology.policy import Policy, Send
from shared.topology.timer import Timer
from shared.topology.topics import Table, Topic, Topology

WAITS_S = (30, 300, 1_800, *(3_600 * hours for hours in (2, 5, 10, 14, 20, 24)))
"""Nearly the waits that Standard Webhooks names."""


class Content(Part):
    """What is sent, the same at each attempt.

    target: whom it is for. to, subject: of mail only; `to` is its addressee.
    body: of mail its text; of a webhook the JSON that is posted.
    """

    target: str
    to: str = ""
    subject: str = ""
    body: str


class RequestEffect(Command):
    """Fields as in Content."""

    TYPE = "effect.request"

    target: str
    to: str = ""
    subject: str = ""
    body: str


class AttemptEffect(Command):
    """The runner asks before each call, and calls only if this is accepted. repeats: as of its target."""

    TYPE = "effect.attempt"

    attempt: Int64
    repeats: bool


class SucceedEffect(Command):
    TYPE = "effect.succeed"

    attempt: Int64


class FailEffect(Command):
    """at: when the call had failed. final: another attempt would be useless."""

    TYPE = "effect.fail"

    attempt: Int64
    reason: str
    at: Instant
    final: bool


class ExpireEffect(Command):
    """Nobody has said what came of the attempt: the timer, or a runner whose call got no answer."""

    TYPE = "effect.expire"

    attempt: Int64


class ResumeEffect(Command):
    """The timer: the wait after a failed attempt is over."""

    TYPE = "effect.resume"

    attempt: Int64
    due: Instant


class RepeatEffect(Command):
    """A person: attempt again what was given up or lost."""

    TYPE = "effect.repeat"


class SettleEffect(Command):
    """A person: what was lost or given up has happened."""

    TYPE = "effect.settle"


EffectCommand = (
    RequestEffect
    | AttemptEffect
    | SucceedEffect
    | FailEffect
    | ExpireEffect
    | ResumeEffect
    | RepeatEffect
    | SettleEffect
)


class EffectRequested(Event):
    TYPE = "effect.requested"

    content: Content


class EffectAttempted(Event):
    """The call is about to be made. repeats: whether its target may get it again."""

    TYPE = "effect.attempted"

    attempt: Int64
    repeats: bool


class EffectFailed(Event):
    """It certainly did not take effect, or may be repeated: it is attempted again when it is due."""

    TYPE = "effect.failed"

    attempt: Int64
    reason: str
    due: Instant


class EffectResumed(Event):
    """It may be attempted now."""

    TYPE = "effect.resumed"

    attempt: Int64


class EffectLost(Event):
    """Nobody knows whether it has taken effect, and its target may not get it again: a person has to find out."""

    TYPE = "effect.lost"

    attempt: Int64


class EffectGivenUp(Event):
    TYPE = "effect.given_up"

    attempt: Int64
    reason: str


class EffectDone(Event):
    """It has taken effect: the target, or a person, said so."""

    TYPE = "effect.done"

    attempt: Int64


EffectEvent = EffectRequested | EffectAttempted | EffectFailed | EffectResumed | EffectLost | EffectGivenUp | EffectDone


class Absent(State):
    phase: Literal["absent"] = "absent"


class Pending(State):
    """attempt: counts from 1. pending_for: the target, by which the runner finds it."""

    phase: Literal["pending"] = "pending"
    content: Content
    attempt: Int64
    pending_for: str


class Attempting(State):
    phase: Literal["attempting"] = "attempting"
    content: Content
    attempt: Int64
    repeats: bool


class Waiting(State):
    phase: Literal["waiting"] = "waiting"
    content: Content
    attempt: Int64
    reason: str
    due: Instant


class Lost(State):
    phase: Literal["lost"] = "lost"
    content: Content
    attempt: Int64


class GivenUp(State):
    phase: Literal["given_up"] = "given_up"
    content: Content
    attempt: Int64
    reason: str


class Done(State):
    phase: Literal["done"] = "done"
    content: Content
    attempt: Int64


Open = Pending | Attempting | Waiting | Lost | GivenUp | Done
Effect = Annotated[Absent | Open, Field(discriminator="phase")]

INITIAL: Effect = Absent()


class EffectRefused(DomainError):
    """`….unknown`, `….not_pending` or `….not_stuck`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def evolve(effect: Effect, event: EffectEvent) -> Effect:
    """The effect after `event`."""
    if isinstance(event, EffectRequested):
        return Pending(content=event.content, attempt=1, pending_for=event.content.target)
    if isinstance(effect, Absent):
        return effect
    content = effect.content
    match event:
        case EffectAttempted(attempt=attempt, repeats=repeats):
            return Attempting(content=content, attempt=attempt, repeats=repeats)
        case EffectFailed(attempt=attempt, reason=reason, due=due):
            return Waiting(content=content, attempt=attempt, reason=reason, due=due)
        case EffectResumed(attempt=attempt):
            return Pending(content=content, attempt=attempt, pending_for=content.target)
        case EffectLost(attempt=attempt):
            return Lost(content=content, attempt=attempt)
        case EffectGivenUp(attempt=attempt, reason=reason):
            return GivenUp(content=content, attempt=attempt, reason=reason)
        case EffectDone(attempt=attempt):
            return Done(content=content, attempt=attempt)
        case _:
            assert_never(event)


@dataclass(frozen=True)
class Rules:
    """What `effect_service` is told of them."""

    noun: str
    targets: Collection[str]
    waits_s: Sequence[int]

    def decide(self, command: EffectCommand, effect: Effect) -> list[EffectEvent]:
        """The events that follow; none if it was already so, or comes too late. Raises EffectRefused."""
        if isinstance(command, RequestEffect):
            return self._requested(command) if isinstance(effect, Absent) else []
        if isinstance(effect, Absent):
            raise self._refused(command, "unknown", "it was never requested")
        match command:
            case AttemptEffect(attempt=attempt, repeats=repeats):
                if not (isinstance(effect, Pending) and effect.attempt == attempt):
                    raise self._refused(command, "not_pending", f"it is {effect.phase}, attempt {effect.attempt}")
                return [EffectAttempted(attempt=attempt, repeats=repeats)]
            case SucceedEffect():
                return [] if isinstance(effect, Done) else [EffectDone(attempt=command.attempt)]
            case FailEffect() | ExpireEffect():
                if not (isinstance(effect, Attempting) and effect.attempt == command.attempt):
                    return []
                return [self._failed(command) if isinstance(command, FailEffect) else self._expired(effect)]
            case ResumeEffect(attempt=attempt, due=due):
                waits = isinstance(effect, Waiting) and (effect.attempt, effect.due) == (attempt, due)
                return [EffectResumed(attempt=attempt + 1)] if waits else []
            case RepeatEffect():
                return [EffectResumed(attempt=self._stuck(command, effect) + 1)]
            case SettleEffect():
                return [EffectDone(attempt=self._stuck(command, effect))]
            case _:
                assert_never(command)

    def _requested(self, command: RequestEffect) -> list[EffectEvent]:
        requested = EffectRequested(content=Content(**dict(command)))
        known = command.target in self.targets
        return [requested] if known else [requested, EffectGivenUp(attempt=0, reason="unknown target")]

    def _failed(self, command: FailEffect) -> EffectEvent:
        attempt, reason = command.attempt, command.reason
        if command.final or attempt > len(self.waits_s):
            return EffectGivenUp(attempt=attempt, reason=reason)
        due = command.at + timedelta(seconds=self.waits_s[attempt - 1])
        return EffectFailed(attempt=attempt, reason=reason, due=due)

    def _expired(self, effect: Attempting) -> EffectEvent:
        if not effect.repeats:
            return EffectLost(attempt=effect.attempt)
        if effect.attempt > len(self.waits_s):
            return EffectGivenUp(attempt=effect.attempt, reason="no outcome")
        return EffectResumed(attempt=effect.attempt + 1)

    def _stuck(self, command: EffectCommand, effect: Open) -> int:
        """The attempt that a person decides about."""
        if not isinstance(effect, Lost | GivenUp):
            raise self._refused(command, "not_stuck", f"it is {effect.phase}, neither lost nor given up")
        return effect.attempt

    def _refused(self, command: EffectCommand, code: str, why: str) -> EffectRefused:
        return EffectRefused(f"{self.noun}.{code}", f"{type(command).__name__} refused: {why}")


def effect_service(
    service: str,
    noun: str,
    *,
    targets: Collection[str],
    waits_s: Sequence[int] = WAITS_S,
    expires_s: float = 120.0,
    partitions: int = 8,
    version: int = 1,
) -> Service:
    """A service of effects, to keep beside those that have them. Its routes are `effect_routes` of it.

    service     its name, also that of its table.
    noun        what one of its effects is called, in the singular: its messages and refusals begin so, as in
                `notice.request`.
    targets     whom they are for, as its `effects.py` calls them. One for anybody else is given up, for a person to
                see.
    waits_s     the seconds after each failed attempt; after the last, an effect is given up.
    expires_s   after so many seconds nobody will say any more what came of an attempt: more than twice what a call may
                take.
    partitions, version: as of its Topology.
    """
    commands, events = Topic(f"{service}.commands.v1"), Topic(f"{service}.events.v1")
    timers = Topic(f"{service}.timers.v1")
    retries = Topic(f"{service}.timers.v2", retention_ms=7 * 86_400_000)  # longer than any outage: docs/calendar.md
    table = Table(service, source=commands, indexes=("phase", "pending_for"))
    rules, own = Rules(noun, targets, waits_s), _called(noun, get_args(EffectCommand) + get_args(EffectEvent))
    attempted, failed, expire, resume = own[EffectAttempted], own[EffectFailed], own[ExpireEffect], own[ResumeEffect]

    def decide(command: EffectCommand, effect: Effect) -> list[Event]:
        return [own[type(event)](**dict(event)) for event in rules.decide(command, effect)]

    def set_deadline(event: EventEnvelope[EffectAttempted]) -> list[Send]:
        return [Send(timers, event.aggregate_id, expire(attempt=event.data.attempt))]

    def set_retry(event: EventEnvelope[EffectFailed]) -> list[Send]:
        return [Send(retries, event.aggregate_id, resume(attempt=event.data.attempt, due=event.data.due))]

    return Service(
        Topology(service, (commands, events, timers, retries), (table,), partitions, version, history=events),
        decider=Decider(
            decide=decide,
            evolve=evolve,
            initial=INITIAL,
            commands=tuple(own[each] for each in get_args(EffectCommand)),
            events=tuple(own[each] for each in get_args(EffectEvent)),
            state=Effect,
        ),
        # from the start: no attempt is left out that is there before the first worker runs
        policies=[
            Policy(set_deadline, source=events, events=(attempted,), commands={timers: (expire,)}, from_start=True),
            Policy(set_retry, source=events, events=(failed,), commands={retries: (resume,)}, from_start=True),
        ],
        timers=[
            Timer(source=timers, target=commands, delay_s=expires_s),
            Timer(source=retries, target=commands, delay_s=30.0, due="due"),
        ],
    )


def _called(noun: str, messages: Iterable[type[Message]]) -> dict[type[Message], Any]:
    """Each as a service's own, with `noun` in its names: `notice.request` is a RequestNotice."""
    own: dict[type[Message], Any] = {}
    for each in messages:
        name = each.__name__.replace("Effect", noun.title().replace("_", ""))
        own[each] = create_model(name, __base__=each, __module__=each.__module__, __doc__=each.__doc__)
        own[each].TYPE = f"{noun}.{each.TYPE.partition('.')[2]}"
    return own
