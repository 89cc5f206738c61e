"""Carts, declared: what their workers, Spark and the tests are given."""

from shared.topology import Service
from tests.carts.domain import DECIDER
from tests.carts.projections import PROJECTIONS
from tests.carts.topology import TOPOLOGY

SERVICE = Service(TOPOLOGY, decider=DECIDER, projections=PROJECTIONS)
