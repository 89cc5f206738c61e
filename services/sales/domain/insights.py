"""Spark's figures, which sales serves unchanged."""

from services.sales.domain.events import Figures
from shared.domain import Instant, State


class Insight(State):
    """The latest figures."""

    kind: str
    figures: Figures
    counted_at: Instant
