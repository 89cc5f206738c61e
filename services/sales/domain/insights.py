"""What was counted of all history, and is told anew with every count: sales serves it as it comes."""

from services.sales.domain.views import View
from shared.es.message import Event
from shared.es.times import Instant

Figures = dict[str, str | int | float]


class Counted(Event):
    """kind: what was counted, such as `retention`. figures: of one row of it, by name."""

    TYPE = "insights.counted"

    kind: str
    figures: Figures


class Insight(View):
    """The figures that were counted last."""

    kind: str
    figures: Figures
    counted_at: Instant
