"""One worker of orders.

faust -A services.orders.app worker
"""

from dataclasses import replace

from services.orders.api import routes
from services.orders.service import SERVICE
from services.orders.settings import OrdersSettings
from services.orders.topology import DEADLINES
from shared.service import read_settings, service_app

deadlines = replace(DEADLINES, delay_s=read_settings(OrdersSettings).deadline_s)
app = service_app(replace(SERVICE, timers=[deadlines]), routes)
