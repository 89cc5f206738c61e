"""What each event changes. To count by something else than the aggregate, see `Rekey` in shared.topology."""

from typing import Any

from shared.domain import EventEnvelope
from shared.topology import Projection
from tests.patterns.tallies.contracts.things import ThingCreated
from tests.patterns.tallies.domain.views import Seen
from tests.patterns.tallies.topology import TALLIES


def seen(view: Seen | None, event: EventEnvelope[ThingCreated], _key: str) -> Seen:
    return Seen(times=1 if view is None else view.times + 1, last_at=event.occurred_at)


PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(TALLIES, seen, initial=None, events=(ThingCreated,), state=Seen | None),
)
