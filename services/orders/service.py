"""Orders, declared: what its workers, Spark, the tools and the tests are given."""

from services.orders.domain.decide import DECIDER
from services.orders.policies import POLICIES
from services.orders.projections import PROJECTIONS
from services.orders.public import PUBLICATIONS
from services.orders.topology import DEADLINES, TOPOLOGY
from shared.topology import Service

SERVICE = Service(
    TOPOLOGY,
    decider=DECIDER,
    projections=PROJECTIONS,
    policies=POLICIES,
    timers=[DEADLINES],
    publications=PUBLICATIONS,
)
