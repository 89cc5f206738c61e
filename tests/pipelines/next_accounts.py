"""The worker of accounts at its next version, whose code is otherwise the same."""

from dataclasses import replace

from services.accounts.api import routes
from services.accounts.service import SERVICE
from shared.service import service_app

NEXT = replace(SERVICE, topology=SERVICE.topology.next_version)

app = service_app(NEXT, routes)
