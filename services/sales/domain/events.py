"""Figures over all of history that Spark writes for sales; every run writes them again."""

from shared.domain import Event

Figures = dict[str, str | int | float]


class Counted(Event):
    """kind: what was counted, such as `retention`. figures: those of one row, by name."""

    TYPE = "insights.counted"

    kind: str
    figures: Figures
