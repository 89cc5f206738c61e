"""One worker of tallies.

faust -A tests.patterns.tallies.app worker
"""

from shared.service import service_app
from tests.patterns.tallies.api import routes
from tests.patterns.tallies.service import SERVICE

app = service_app(SERVICE, routes)
