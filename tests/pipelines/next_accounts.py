"""The worker of accounts at its next version, whose code is otherwise the same."""

from dataclasses import replace

from services.accounts.api import routes
from services.accounts.domain.decide import DECIDER
from services.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from shared.engine.processors import Aggregate
from shared.service import service_app

NEXT = replace(TOPOLOGY, version=2)

app = service_app(NEXT, [Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS)], routes)
