"""One worker of orders.

faust -A services.orders.app worker
"""

from services.orders.api import routes
from services.orders.processors import timers
from services.orders.service import SERVICE
from services.orders.settings import OrdersSettings
from shared.service import read_settings, service_app

app = service_app(SERVICE, routes, [timers(read_settings(OrdersSettings).deadline_s)])
