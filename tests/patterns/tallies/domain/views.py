"""What is kept of each key."""

from shared.domain import Instant, State


class Seen(State):
    """How often it has happened, and when last."""

    times: int
    last_at: Instant
