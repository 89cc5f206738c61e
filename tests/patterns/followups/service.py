"""Followups, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import Service
from tests.patterns.followups.domain.decide import DECIDER
from tests.patterns.followups.policies import POLICIES
from tests.patterns.followups.topology import DEADLINES, TOPOLOGY

SERVICE = Service(TOPOLOGY, decider=DECIDER, policies=POLICIES, timers=[DEADLINES])
