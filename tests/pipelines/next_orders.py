"""The worker of orders at its next version."""

from dataclasses import replace

from services.orders.api import routes
from services.orders.processors import processors
from services.orders.settings import OrdersSettings
from services.orders.topology import TOPOLOGY
from shared.settings import read_settings
from shared.worker import service_app

NEXT = replace(TOPOLOGY, version=2)

app = service_app(NEXT, processors(read_settings(OrdersSettings).deadline_s), routes)
