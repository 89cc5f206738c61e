"""Which commands are sent after each event."""

from shared.testing.scenario import happened
from shared.topology import Send
from tests.patterns.followups.contracts.things import ThingCreated
from tests.patterns.followups.domain.commands import CheckFollowup, StartFollowup
from tests.patterns.followups.domain.events import FollowupStarted
from tests.patterns.followups.policies import set_timer, start
from tests.patterns.followups.topology import COMMANDS, TIMERS


def test_a_followup_has_the_id_of_what_it_follows() -> None:
    assert start(happened(ThingCreated(), aggregate_id="t-1")) == [Send(COMMANDS, "t-1", StartFollowup())]


def test_a_started_followup_is_looked_at_when_its_time_is_over() -> None:
    assert set_timer(happened(FollowupStarted(), aggregate_id="t-1")) == [Send(TIMERS, "t-1", CheckFollowup())]
