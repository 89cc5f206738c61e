"""One worker of a service with one partition."""

from dataclasses import replace

from shared.service import service_app
from tests.versions.tallies import routes_of, tallies, visits_to

_WIDE = tallies(1, "lone")
TOPOLOGY = replace(_WIDE.topology, partitions=1)
VISITS = replace(visits_to("lone"), partitions=1)
SERVICE = replace(_WIDE, topology=TOPOLOGY)
app = service_app(SERVICE, routes_of(SERVICE))
