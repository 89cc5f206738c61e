"""The commands of a followup: policies and the timer send all but FinishFollowup."""

from shared.domain import Command


class StartFollowup(Command):
    TYPE = "followup.start"


class CheckFollowup(Command):
    """The time is over."""

    TYPE = "followup.check"


class FinishFollowup(Command):
    TYPE = "followup.finish"


FollowupCommand = StartFollowup | CheckFollowup | FinishFollowup
