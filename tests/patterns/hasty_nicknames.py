"""One worker of nicknames, whose claims expire at once."""

from dataclasses import replace

from shared.service import service_app
from tests.patterns.nicknames.api import routes
from tests.patterns.nicknames.service import SERVICE
from tests.patterns.nicknames.topology import EXPIRY

app = service_app(replace(SERVICE, timers=[replace(EXPIRY, delay_s=0.5)]), routes)
