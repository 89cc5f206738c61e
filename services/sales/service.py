"""Sales, declared: what its workers, Spark, the tools and the tests are given."""

from services.sales.projections import JOINS, PROJECTIONS, REKEYS
from services.sales.topology import TOPOLOGY
from shared.topology import Service

SERVICE = Service(TOPOLOGY, rekeys=REKEYS, projections=PROJECTIONS, joins=JOINS)
