"""One worker of inventory.

faust -A services.inventory.app worker
"""

from services.inventory.api import routes
from services.inventory.service import SERVICE
from shared.service import service_app

app = service_app(SERVICE, routes)
