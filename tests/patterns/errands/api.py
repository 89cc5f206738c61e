"""The HTTP API of errands: for the runner, and for people who settle what it can't."""

from shared.service import effect_routes
from tests.patterns.errands.service import SERVICE

routes = effect_routes(SERVICE)
