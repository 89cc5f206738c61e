"""One worker of the tests' own accounts: the engine and its HTTP side are proved with it, without any service.

faust -A tests.accounts.app worker
"""

from shared.service import service_app
from tests.accounts.api import routes
from tests.accounts.processors import PROCESSORS
from tests.accounts.topology import TOPOLOGY

app = service_app(TOPOLOGY, PROCESSORS, routes)
