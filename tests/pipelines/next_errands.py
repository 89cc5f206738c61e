"""The worker of errands at its next version."""

from dataclasses import replace

from shared.service import service_app
from tests.patterns.errands.api import routes
from tests.patterns.errands.service import SERVICE

app = service_app(replace(SERVICE, topology=SERVICE.topology.next_version), routes)
