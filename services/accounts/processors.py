"""The pure parts of accounts bound to their topics."""

from services.accounts.domain.decide import DECIDER
from services.accounts.topology import ACCOUNTS, EVENTS
from shared.service import Aggregate

PROCESSORS = (Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS),)
