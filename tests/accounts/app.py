"""One worker of the tests' own accounts: the engine and its HTTP side are proved with it, without any service.

faust -A tests.accounts.app worker
"""

from shared.service import service_app
from tests.accounts.api import routes
from tests.accounts.service import SERVICE

app = service_app(SERVICE, routes)
