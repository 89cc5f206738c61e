"""One worker of accounts.

faust -A services.accounts.app worker
"""

from services.accounts.api import routes
from services.accounts.service import SERVICE
from shared.service import service_app

app = service_app(SERVICE, routes)
