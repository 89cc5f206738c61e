"""The HTTP API of pickups: for the runner, and for people who settle what it can't."""

from services.pickups.service import SERVICE
from shared.service import effect_routes

routes = effect_routes(SERVICE)
