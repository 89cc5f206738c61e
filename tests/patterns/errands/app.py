"""One worker of errands.

faust -A tests.patterns.errands.app worker
"""

from shared.service import service_app
from tests.patterns.errands.api import routes
from tests.patterns.errands.service import SERVICE

app = service_app(SERVICE, routes)
