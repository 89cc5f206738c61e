"""One worker of accounts.

faust -A services.accounts.app worker
"""

from services.accounts.api import routes
from services.accounts.domain.decide import DECIDER
from services.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from shared.streams.processors import Aggregate
from shared.worker import service_app

app = service_app(TOPOLOGY, [Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS)], routes)
