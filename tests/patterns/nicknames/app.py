"""One worker of nicknames.

faust -A tests.patterns.nicknames.app worker
"""

from shared.service import service_app
from tests.patterns.nicknames.api import routes
from tests.patterns.nicknames.service import SERVICE

app = service_app(SERVICE, routes)
