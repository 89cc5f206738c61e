"""Errands, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import Service
from tests.patterns.errands.domain.decide import DECIDER
from tests.patterns.errands.policies import POLICIES
from tests.patterns.errands.topology import EXPIRY, RETRY, TOPOLOGY

SERVICE = Service(TOPOLOGY, decider=DECIDER, policies=POLICIES, timers=[EXPIRY, RETRY])
