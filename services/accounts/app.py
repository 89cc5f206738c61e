"""One worker of accounts.

faust -A services.accounts.app worker
"""

from services.accounts.api import routes
from services.accounts.processors import PROCESSORS
from services.accounts.topology import TOPOLOGY
from shared.service import service_app

app = service_app(TOPOLOGY, PROCESSORS, routes)
