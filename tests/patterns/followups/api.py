"""The HTTP API of followups: finishes one, shows how far each is."""

from typing import Literal

from pydantic import BaseModel

from shared.domain import Row
from shared.service import Resource
from tests.patterns.followups.domain.commands import FinishFollowup
from tests.patterns.followups.domain.decide import DECIDER
from tests.patterns.followups.domain.state import Absent, Followup
from tests.patterns.followups.topology import FOLLOWUPS


class FollowupView(BaseModel):
    """sequence: number of events so far."""

    followup_id: str
    phase: Literal["waiting", "overdue", "finished"]
    sequence: int


def followup_view(followup_id: str, row: Row[Followup]) -> FollowupView | None:
    """None for a followup that was never started."""
    if isinstance(row.state, Absent):
        return None
    return FollowupView(followup_id=followup_id, phase=row.state.phase, sequence=row.sequence)


routes = Resource(
    "/followups/{followup_id}",
    FOLLOWUPS,
    followup_view,
    filters=("phase",),
    decider=DECIDER,
    commands={"end": FinishFollowup},
)
