"""Inventory, declared: what its workers, Spark, the tools and the tests are given."""

from services.inventory.domain.decide import DECIDER
from services.inventory.projections import PROJECTIONS
from services.inventory.topology import TOPOLOGY
from shared.topology import Service

SERVICE = Service(TOPOLOGY, decider=DECIDER, projections=PROJECTIONS)
