"""One worker of pickups.

faust -A services.pickups.app worker
"""

from services.pickups.api import routes
from services.pickups.service import SERVICE
from shared.service import service_app

app = service_app(SERVICE, routes)
