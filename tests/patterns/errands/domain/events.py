"""The events of an errand, which is one effect outside: a call that can't be taken back."""

from shared.domain import Event, Instant, Int64, Part


class Content(Part):
    """What is sent, the same at each attempt.

    to, subject: of mail only; `to` is its addressee.
    body: of mail its text; of a webhook the JSON that is posted.
    """

    target: str
    to: str = ""
    subject: str = ""
    body: str


class ErrandRequested(Event):
    TYPE = "errand.requested"

    content: Content


class ErrandAttempted(Event):
    """The call is about to be made. repeats: whether its target may get it again."""

    TYPE = "errand.attempted"

    attempt: Int64
    repeats: bool


class ErrandFailed(Event):
    """It certainly did not take effect, or may be repeated: it is attempted again when it is due."""

    TYPE = "errand.failed"

    attempt: Int64
    reason: str
    due: Instant


class ErrandResumed(Event):
    """It may be attempted now."""

    TYPE = "errand.resumed"

    attempt: Int64


class ErrandLost(Event):
    """Nobody knows whether it has taken effect, and its target may not get it again: a person has to find out."""

    TYPE = "errand.lost"

    attempt: Int64


class ErrandGivenUp(Event):
    TYPE = "errand.given_up"

    attempt: Int64
    reason: str


class ErrandDone(Event):
    """It has taken effect: the target, or a person, said so."""

    TYPE = "errand.done"

    attempt: Int64


ErrandEvent = ErrandRequested | ErrandAttempted | ErrandFailed | ErrandResumed | ErrandLost | ErrandGivenUp | ErrandDone
