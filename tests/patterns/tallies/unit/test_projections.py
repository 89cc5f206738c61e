"""What each event changes, in sentences."""

from datetime import timedelta

from shared.testing.scenario import NOON, ViewScenario, happened
from tests.patterns.tallies.contracts.things import ThingCreated
from tests.patterns.tallies.domain.views import Seen
from tests.patterns.tallies.projections import PROJECTIONS
from tests.patterns.tallies.topology import TALLIES

row = ViewScenario(PROJECTIONS, TALLIES)


def test_it_is_counted_by_aggregate_with_the_time_of_the_last() -> None:
    later = NOON + timedelta(days=1)
    row("t-1", happened(ThingCreated())).shows(Seen(times=1, last_at=NOON))
    row("t-1", happened(ThingCreated()), happened(ThingCreated(), occurred_at=later)).shows(
        Seen(times=2, last_at=later)
    )
