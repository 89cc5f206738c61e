"""The pure parts of inventory bound to their topics."""

from services.inventory.domain.decide import DECIDER
from services.inventory.projections import READ_MODELS
from services.inventory.topology import EVENTS, ITEMS
from shared.service import Aggregate, Projection

PROCESSORS = (Aggregate(DECIDER, table=ITEMS, events=EVENTS), *map(Projection, READ_MODELS))
