from shared.topology import Service
from tests.pipelines.charged.projections import PROJECTIONS
from tests.pipelines.charged.topology import TOPOLOGY

SERVICE = Service(TOPOLOGY, projections=PROJECTIONS)
