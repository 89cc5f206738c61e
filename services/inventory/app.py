"""One worker of inventory.

faust -A services.inventory.app worker
"""

from services.inventory.api import routes
from services.inventory.domain.decide import DECIDER
from services.inventory.topology import EVENTS, ITEMS, TOPOLOGY
from shared.streams.processors import Aggregate
from shared.worker import service_app

app = service_app(TOPOLOGY, [Aggregate(DECIDER, table=ITEMS, events=EVENTS)], routes)
