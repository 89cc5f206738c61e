"""One worker of things.

faust -A tests.patterns.things.app worker
"""

from shared.service import service_app
from tests.patterns.things.api import routes
from tests.patterns.things.service import SERVICE

app = service_app(SERVICE, routes)
