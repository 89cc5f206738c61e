"""The commands of an errand: policies request one, the runner attempts it and says what came of it, timers go on.

The runner sends AttemptErrand, SucceedErrand, FailErrand and ExpireErrand by their routes, so these four keep their
fields.
"""

from shared.domain import Command, Instant, Int64


class RequestErrand(Command):
    """Fields as in Content. Of a target that is none of TARGETS, the errand is given up, for a person to see."""

    TYPE = "errand.request"

    target: str
    to: str = ""
    subject: str = ""
    body: str


class AttemptErrand(Command):
    """The runner asks before each call, and calls only if this is accepted. repeats: as of its target."""

    TYPE = "errand.attempt"

    attempt: Int64
    repeats: bool


class SucceedErrand(Command):
    TYPE = "errand.succeed"

    attempt: Int64


class FailErrand(Command):
    """at: when the call had failed. final: another attempt would be useless."""

    TYPE = "errand.fail"

    attempt: Int64
    reason: str
    at: Instant
    final: bool


class ExpireErrand(Command):
    """Nobody has said what came of the attempt: the timer, or a runner whose call got no answer."""

    TYPE = "errand.expire"

    attempt: Int64


class ResumeErrand(Command):
    """The timer: the wait after a failed attempt is over."""

    TYPE = "errand.resume"

    attempt: Int64
    due: Instant


class RepeatErrand(Command):
    """A person: attempt again what was given up or lost."""

    TYPE = "errand.repeat"


class SettleErrand(Command):
    """A person: what was lost or given up has happened."""

    TYPE = "errand.settle"


ErrandCommand = (
    RequestErrand
    | AttemptErrand
    | SucceedErrand
    | FailErrand
    | ExpireErrand
    | ResumeErrand
    | RepeatErrand
    | SettleErrand
)
