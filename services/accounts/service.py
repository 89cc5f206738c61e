"""Accounts, declared: what its workers, Spark, the tools and the tests are given."""

from services.accounts.domain.decide import DECIDER
from services.accounts.topology import TOPOLOGY
from shared.topology import Service

SERVICE = Service(TOPOLOGY, decider=DECIDER)
