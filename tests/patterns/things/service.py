"""Things, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import Service
from tests.patterns.things.domain.decide import DECIDER
from tests.patterns.things.topology import TOPOLOGY

SERVICE = Service(TOPOLOGY, decider=DECIDER)
