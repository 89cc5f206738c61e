"""One worker of baskets; the environment says of which name, with how many partitions, and how long timers wait."""

import os

from shared.service import service_app
from tests.engine.baskets import baskets, routes_of

name, partitions, delay_s = os.environ["BASKETS"].split()
SERVICE = baskets(name, int(partitions), float(delay_s))
app = service_app(SERVICE, routes_of(SERVICE))
