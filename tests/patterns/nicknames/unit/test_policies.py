"""Which commands are sent after each event."""

from shared.testing.scenario import happened
from shared.topology import Send
from tests.patterns.nicknames.domain.commands import ExpireNickname
from tests.patterns.nicknames.domain.events import NicknameClaimed
from tests.patterns.nicknames.policies import set_timer
from tests.patterns.nicknames.topology import TIMERS


def test_a_claim_expires_for_its_claimant_when_its_time_is_over() -> None:
    claimed = happened(NicknameClaimed(claimant="s-1"), aggregate_id="ace")
    assert set_timer(claimed) == [Send(TIMERS, "ace", ExpireNickname(claimant="s-1"))]
