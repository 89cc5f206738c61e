"""Tallies, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import Service
from tests.patterns.tallies.projections import PROJECTIONS
from tests.patterns.tallies.topology import TOPOLOGY

SERVICE = Service(TOPOLOGY, projections=PROJECTIONS)
