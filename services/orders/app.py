"""One worker of orders.

faust -A services.orders.app worker
"""

from services.orders.api import routes
from services.orders.processors import processors
from services.orders.settings import OrdersSettings
from services.orders.topology import TOPOLOGY
from shared.service import read_settings, service_app

app = service_app(TOPOLOGY, processors(read_settings(OrdersSettings).deadline_s), routes)
