"""One worker of inventory.

faust -A services.inventory.app worker
"""

from services.inventory.api import routes
from services.inventory.processors import PROCESSORS
from services.inventory.topology import TOPOLOGY
from shared.service import service_app

app = service_app(TOPOLOGY, PROCESSORS, routes)
