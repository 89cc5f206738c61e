"""The commands of a nickname: the timer sends ExpireNickname.

A claimant is one attempt, such as a sign-up: whoever has released claims again as another one, because the timer of the
first claim still runs.
"""

from shared.domain import AggregateId, Command


class ClaimNickname(Command):
    TYPE = "nickname.claim"

    claimant: AggregateId


class UseNickname(Command):
    TYPE = "nickname.use"

    claimant: AggregateId


class ReleaseNickname(Command):
    """Give it up, whether it was used or not."""

    TYPE = "nickname.release"

    claimant: AggregateId


class ExpireNickname(Command):
    """The time of the claim is over."""

    TYPE = "nickname.expire"

    claimant: AggregateId


NicknameCommand = ClaimNickname | UseNickname | ReleaseNickname | ExpireNickname
