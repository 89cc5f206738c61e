"""One worker of sales.

faust -A services.sales.app worker
"""

from services.sales.api import routes
from services.sales.service import SERVICE
from shared.service import service_app

app = service_app(SERVICE, routes)
