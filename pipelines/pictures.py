"""Results as pictures, SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_CENTS = 100
_WIDE, _HIGH = (9, 3.2), (9, 6)


def draw_revenue(rows: Sequence[Any], folder: Path) -> None:
    """revenue.svg and .png. rows: of `revenue_by_day`."""
    ordered = sorted(rows, key=lambda row: row.day)
    figure = Figure(figsize=_WIDE)
    axes = figure.subplots()
    axes.bar([row.day for row in ordered], [row.cents / _CENTS for row in ordered], width=1.0, color="#3b6ea5")
    axes.set_ylabel("dollars a day")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, folder, "revenue")


def draw_retention(rows: Sequence[Any], folder: Path) -> None:
    """retention.svg and .png: a heat map. rows: of `retention`."""
    cohorts = sorted({row.cohort for row in rows})
    months = range(1, max([1, *(row.months for row in rows)]) + 1)
    share = {(row.cohort, row.months): row.share for row in rows}
    grid = [[share.get((cohort, month), float("nan")) for month in months] for cohort in cohorts]
    figure = Figure(figsize=_HIGH)
    axes = figure.subplots()
    image = axes.imshow(grid or [[float("nan")]], aspect="auto", cmap="Blues", vmin=0)
    axes.set_xticks(range(len(months)), [str(month) for month in months])
    axes.set_yticks(range(len(cohorts)), [f"{cohort:%b %Y}" for cohort in cohorts])
    axes.set_xlabel("months after the first purchase")
    figure.colorbar(image, label="share of the cohort that bought")
    _save(figure, folder, "retention")


def _save(figure: Figure, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        figure.savefig(
            folder / f"{name}.{suffix}", bbox_inches="tight", metadata={"Date": None} if suffix == "svg" else None
        )
