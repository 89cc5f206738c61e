"""Spark's figures as sales serves them, unchanged."""

from services.sales.domain.events import Figures
from shared.es.state import State
from shared.es.times import Instant


class Insight(State):
    """The figures that were counted last."""

    kind: str
    figures: Figures
    counted_at: Instant
