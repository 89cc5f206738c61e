"""Results as pictures, SVG and PNG.

They show the last ten years before the latest day, and tell how much is older: one charge of the year 1 would make
hundreds of thousands of days of a picture, in which nobody sees the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_CENTS = 100
_YEARS = 10
_WIDE, _HIGH = (9, 3.2), (9, 6)


def draw_revenue(rows: Sequence[Any], folder: Path) -> None:
    """revenue.svg and .png. rows: of `revenue_by_day`."""
    shown = _last_years(rows, "day")
    figure = Figure(figsize=_WIDE)
    axes = figure.subplots()
    days, dollars = [row.day for row in shown], [row.cents / _CENTS for row in shown]
    axes.bar(days, dollars, width=1.0, align="edge", color="#3b6ea5")
    if shown:
        axes.set_xlim(shown[0].day, shown[-1].day + timedelta(days=1))  # a margin may begin before the year 1
    axes.set_title(_older(len(rows) - len(shown), "days"))
    axes.set_ylabel("dollars a day")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, folder, "revenue")


def draw_retention(rows: Sequence[Any], folder: Path) -> None:
    """retention.svg and .png: a heat map. rows: of `retention`."""
    recent = _last_years(rows, "cohort")
    cohorts = sorted({row.cohort for row in recent})
    months = range(1, max([1, *(row.months for row in recent)]) + 1)
    share = {(row.cohort, row.months): row.share for row in recent}
    grid = [[share.get((cohort, month), float("nan")) for month in months] for cohort in cohorts]
    figure = Figure(figsize=_HIGH)
    axes = figure.subplots()
    image = axes.imshow(grid or [[float("nan")]], aspect="auto", cmap="Blues", vmin=0)
    axes.set_xticks(range(len(months)), [str(month) for month in months])
    axes.set_yticks(range(len(cohorts)), [f"{cohort:%b %Y}" for cohort in cohorts])
    axes.set_title(_older(len({row.cohort for row in rows}) - len(cohorts), "cohorts"))
    axes.set_xlabel("months after the first purchase")
    figure.colorbar(image, label="share of the cohort that bought")
    _save(figure, folder, "retention")


def _last_years(rows: Sequence[Any], day: str) -> list[Any]:
    """In the order of the days."""
    ordered = sorted(rows, key=itemgetter(day))
    return [row for row in ordered if row[day].year > ordered[-1][day].year - _YEARS]


def _older(count: int, what: str) -> str:
    return f"{count:,} {what} are older than {_YEARS} years, and not drawn" if count else ""


def _save(figure: Figure, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        figure.savefig(
            folder / f"{name}.{suffix}", bbox_inches="tight", metadata={"Date": None} if suffix == "svg" else None
        )
