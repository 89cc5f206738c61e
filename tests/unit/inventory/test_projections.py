"""What a movement changes in an item's level, in sentences."""

from services.inventory.domain.events import StockReceived, StockShipped
from services.inventory.domain.views import Level
from services.inventory.projections import PROJECTIONS
from services.inventory.projections import level as project
from services.inventory.topology import LEVELS
from shared.testing.scenario import ViewScenario, happened

level = ViewScenario(PROJECTIONS, LEVELS)
DELIVERED = happened(StockReceived(quantity=3))


def test_delivered_pieces_are_on_the_shelf() -> None:
    level("abba", DELIVERED).shows(Level(received=3, physical=3))


def test_shipped_pieces_have_left_the_shelf() -> None:
    shipped = happened(StockShipped(order_id="o-1", quantity=2), sequence=2)
    level("abba", DELIVERED, shipped).shows(Level(received=3, shipped=2, physical=1))


def test_a_projection_is_called_as_it_is_declared() -> None:
    """An event of one kind is an event of any: mypy would tell."""
    assert project(Level(), DELIVERED, "abba") == Level(received=3, physical=3)
