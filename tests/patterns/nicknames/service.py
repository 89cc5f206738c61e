"""Nicknames, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import Service
from tests.patterns.nicknames.domain.decide import DECIDER
from tests.patterns.nicknames.policies import POLICIES
from tests.patterns.nicknames.topology import EXPIRY, TOPOLOGY

SERVICE = Service(TOPOLOGY, decider=DECIDER, policies=POLICIES, timers=[EXPIRY])
