"""The HTTP API of errands: for the runner, and for people who settle what it can't."""

from typing import Literal

from pydantic import BaseModel

from shared.domain import Row
from shared.service import Resource
from tests.patterns.errands.domain.commands import (
    AttemptErrand,
    ExpireErrand,
    FailErrand,
    RepeatErrand,
    RequestErrand,
    SettleErrand,
    SucceedErrand,
)
from tests.patterns.errands.domain.decide import DECIDER
from tests.patterns.errands.domain.events import Content
from tests.patterns.errands.domain.state import Absent, Errand
from tests.patterns.errands.topology import ERRANDS


class ErrandView(BaseModel):
    """effect_id: its id, as the runner reads it. pending_for: its target, while an attempt is due.

    reason: why the last attempt failed. sequence: number of events so far.
    """

    effect_id: str
    phase: Literal["pending", "attempting", "waiting", "lost", "given_up", "done"]
    pending_for: str | None
    attempt: int
    reason: str | None
    content: Content
    sequence: int


def errand_view(errand_id: str, row: Row[Errand]) -> ErrandView | None:
    """None for an errand that was never requested."""
    errand = row.state
    if isinstance(errand, Absent):
        return None
    return ErrandView(
        effect_id=errand_id,
        phase=errand.phase,
        pending_for=getattr(errand, "pending_for", None),
        attempt=errand.attempt,
        reason=getattr(errand, "reason", None),
        content=errand.content,
        sequence=row.sequence,
    )


routes = Resource(
    "/errands/{errand_id}",
    ERRANDS,
    errand_view,
    filters=("phase", "pending_for"),
    decider=DECIDER,
    commands={
        "": RequestErrand,
        "attempt": AttemptErrand,
        "succeed": SucceedErrand,
        "fail": FailErrand,
        "expire": ExpireErrand,
        "repeat": RepeatErrand,
        "settle": SettleErrand,
    },
)
