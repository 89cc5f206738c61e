"""One worker of a service of the tests' tallies, of the name and the version that the environment names."""

import os

from shared.service import service_app
from tests.versions.tallies import routes_of, tallies

SERVICE = tallies(int(os.environ["TALLIES_VERSION"]), os.environ["TALLIES_NAME"])
app = service_app(SERVICE, routes_of(SERVICE))
