"""One worker of carts.

faust -A tests.carts.app worker
"""

from shared.service import service_app
from tests.carts.api import routes
from tests.carts.service import SERVICE

app = service_app(SERVICE, routes)
