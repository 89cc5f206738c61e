"""The worker of inventory at its next version."""

from dataclasses import replace

from services.inventory.api import routes
from services.inventory.processors import PROCESSORS
from services.inventory.topology import TOPOLOGY
from shared.worker import service_app

NEXT = replace(TOPOLOGY, version=2)

app = service_app(NEXT, PROCESSORS, routes)
