from shared.topology import Service
from tests.pipelines.charged.projections import READ_MODELS
from tests.pipelines.charged.topology import TOPOLOGY

SERVICE = Service(TOPOLOGY, projections=READ_MODELS)
