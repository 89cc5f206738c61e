"""What was counted of all history, as sales serves it: it is taken as it comes."""

from services.sales.domain.events import Figures
from services.sales.domain.views import View
from shared.es.times import Instant


class Insight(View):
    """The figures that were counted last."""

    kind: str
    figures: Figures
    counted_at: Instant
