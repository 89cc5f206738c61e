"""One worker of followups.

faust -A tests.patterns.followups.app worker
"""

from shared.service import service_app
from tests.patterns.followups.api import routes
from tests.patterns.followups.service import SERVICE

app = service_app(SERVICE, routes)
