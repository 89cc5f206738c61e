"""How a movement of stock changes the level of its item."""

from typing import Any, assert_never, get_args

from services.inventory.domain.events import StockReceived, StockShipped
from services.inventory.domain.views import Level
from services.inventory.topology import LEVELS
from shared.domain import EventEnvelope
from shared.topology import Projection

Movement = StockReceived | StockShipped


def level(view: Level, event: EventEnvelope[Movement], _sku: str) -> Level:
    match event.data:
        case StockReceived(quantity=quantity):
            return view.moved(received=quantity)
        case StockShipped(quantity=quantity):
            return view.moved(shipped=quantity)
        case _:
            assert_never(event.data)


PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(LEVELS, level, initial=Level(), events=get_args(Movement), state=Level),
)
