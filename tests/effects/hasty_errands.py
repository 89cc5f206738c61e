"""One worker of errands, whose attempts expire soon, and are made again at once, as often as it takes."""

from dataclasses import replace

from shared.service import effect_routes, service_app
from shared.topology import effect_service

SERVICE = effect_service(
    "errands", "errand", targets=("keyed", "plain", "once", "mail"), waits_s=(0,) * 1_000, expires_s=6.0
)
EXPIRY, RETRY = SERVICE.timers
app = service_app(replace(SERVICE, timers=[EXPIRY, replace(RETRY, delay_s=0.5)]), effect_routes(SERVICE))
