"""The HTTP API of effects: for the runner, and for people who settle what it can't."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from shared.domain.row import Row
from shared.http.resource import Resource
from shared.topology.declaration import Service
from shared.topology.effect import Absent, Content, Effect

_POSTED = ("attempt", "succeed", "fail", "expire", "repeat", "settle")


class EffectView(BaseModel):
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


def effect_view(effect_id: str, row: Row[Effect]) -> EffectView | None:
    """None for an effect that was never requested."""
    effect = row.state
    if isinstance(effect, Absent):
        return None
    return EffectView(
        effect_id=effect_id,
        phase=effect.phase,
        pending_for=getattr(effect, "pending_for", None),
        attempt=effect.attempt,
        reason=getattr(effect, "reason", None),
        content=effect.content,
        sequence=row.sequence,
    )


def effect_routes(service: Service) -> Resource[Effect]:
    """What a service serves that `effect_service` has made.

    service: that one.
    """
    decider = service.decider
    assert decider is not None
    by_verb = {each.TYPE.rpartition(".")[2]: each for each in decider.commands}
    return Resource(
        f"/{service.topology.service}/{{effect_id}}",
        service.aggregates,
        effect_view,
        filters=("phase", "pending_for"),
        decider=decider,
        commands={"": by_verb["request"], **{verb: by_verb[verb] for verb in _POSTED}},
    )
