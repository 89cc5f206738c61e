"""What a movement changes in an item's level, in sentences."""

from datetime import UTC, datetime

from services.inventory.domain.events import StockReceived, StockShipped
from services.inventory.domain.views import Level
from services.inventory.projections import Movement, level
from shared.es.envelope import EventEnvelope

NOON = datetime(1997, 1, 18, 12, tzinfo=UTC)


def moved(data: Movement) -> EventEnvelope[Movement]:
    return EventEnvelope(
        event_id="e-1",
        type=data.TYPE,
        schema_version=1,
        aggregate_id="abba",
        sequence=1,
        occurred_at=NOON,
        correlation_id="story",
        data=data,
    )


def test_delivered_pieces_are_on_the_shelf() -> None:
    assert level(Level(), moved(StockReceived(quantity=3)), "abba") == Level(received=3, physical=3)


def test_shipped_pieces_have_left_the_shelf() -> None:
    before = Level(received=3, physical=3)
    after = level(before, moved(StockShipped(order_id="o-1", quantity=2)), "abba")
    assert after == Level(received=3, shipped=2, physical=1)
