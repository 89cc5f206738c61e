"""The pure parts of accounts bound to their topics."""

from shared.service import Aggregate
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS

PROCESSORS = (Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS),)
