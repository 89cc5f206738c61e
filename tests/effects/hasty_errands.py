"""One worker of errands, whose attempts expire soon, and are made again at once, as often as it takes."""

from dataclasses import replace

from shared.service import service_app
from tests.patterns.errands.api import routes
from tests.patterns.errands.domain import decide
from tests.patterns.errands.service import SERVICE
from tests.patterns.errands.topology import EXPIRY, RETRY

decide.TARGETS = ("keyed", "plain", "once", "mail")  # type: ignore[assignment]
decide.WAITS_S = (0,) * 1_000
timers = [replace(EXPIRY, delay_s=6.0), replace(RETRY, delay_s=0.5)]
app = service_app(replace(SERVICE, timers=timers), routes)
