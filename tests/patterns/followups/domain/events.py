"""The events of a followup."""

from shared.domain import Event


class FollowupStarted(Event):
    TYPE = "followup.started"


class FollowupOverdue(Event):
    """It was not finished in time."""

    TYPE = "followup.overdue"


class FollowupFinished(Event):
    TYPE = "followup.finished"


FollowupEvent = FollowupStarted | FollowupOverdue | FollowupFinished
