"""The tests' own accounts, declared: what their workers and the tests are given."""

from shared.topology import Service
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import TOPOLOGY

SERVICE = Service(TOPOLOGY, decider=DECIDER)
