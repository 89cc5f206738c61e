"""One worker of sales.

faust -A services.sales.app worker
"""

from services.sales.api import routes
from services.sales.processors import PROCESSORS
from services.sales.topology import TOPOLOGY
from shared.service import service_app

app = service_app(TOPOLOGY, PROCESSORS, routes)
