"""One worker of the tests' tallies or tills, of the name and the version that the environment names."""

import os

from shared.service import service_app
from tests.versions import tallies, tills

name, version = os.environ["TALLIES_NAME"], int(os.environ["TALLIES_VERSION"])
if name.startswith("tills"):
    SERVICE = tills.tills(version, name)
    app = service_app(SERVICE, tills.routes_of(SERVICE))
else:
    SERVICE = tallies.tallies(version, name)
    app = service_app(SERVICE, tallies.routes_of(SERVICE))
