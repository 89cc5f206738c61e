"""What a run measured, as SVG pictures; each is drawn when the run has its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.report import Report, Result

_SIZE = (8, 3)
_OURS, _THEIRS = "#3b6ea5", "#b8b8b8"
_SIDES = ("stock_faust", "quix_eos", "kafka_streams_eos", "engine_raw", "engine")


def draw(report: Report, folder: Path) -> None:
    """speed.svg, speed_wide.svg, restore.svg, growth.svg, rebuild.svg and parts.svg, as far as they were measured."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {result.name: result for result in report.results}
    for suffix in ("", "_wide"):
        sides = [found[side + suffix] for side in _SIDES if side + suffix in found]
        if len(sides) > 1:
            _bars(
                sides,
                "events_per_s",
                f"events a second, {sides[0].figures['keys']:,} keys",
                folder / f"speed{suffix}.svg",
            )
    restores = [result for name, result in found.items() if name.startswith("restore_")]
    if restores:
        _bars(restores, "records_per_s", "changelog records a second", folder / "restore.svg")
    parts = [result for name, result in found.items() if name.startswith("part_")]
    if parts:
        _bars(parts, "cpu_us", "microseconds of CPU", folder / "parts.svg")
    rebuilds = [result for name, result in found.items() if name.startswith("rebuild_")]
    if rebuilds:
        _growth(rebuilds, ("total_s", "peak_mb"), folder / "rebuild.svg")
    growth = [result for name, result in found.items() if "_events_" in name and result not in rebuilds]
    if growth:
        _bars(growth, "events_per_s", "events a second", folder / "growth.svg")


def _bars(results: Sequence[Result], figure: str, label: str, file: Path) -> None:
    picture = Figure(figsize=_SIZE)
    axes = picture.subplots()
    values = [float(str(result.figures[figure])) for result in results]
    colours = [_OURS if "engine" in result.name else _THEIRS for result in results]
    bars = axes.barh([result.name for result in results], values, color=colours)
    axes.bar_label(bars, [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values], padding=4)
    axes.set_xlim(0, max(values) * 1.15)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(file, bbox_inches="tight", metadata={"Date": None})


def _growth(results: Sequence[Result], figures: Sequence[str], file: Path) -> None:
    """Each figure over the number of events, a line for each number of cores."""
    picture = Figure(figsize=_SIZE)
    all_cores = max(int(str(result.figures["cores"])) for result in results)
    for place, figure in enumerate(figures, start=1):
        axes = picture.add_subplot(1, len(figures), place)
        for cores, colour in ((all_cores, _OURS), (1, _THEIRS)):
            mine = sorted(
                (int(str(result.figures["events"])), float(str(result.figures[figure])))
                for result in results
                if result.figures["cores"] == cores
            )
            axes.plot(*zip(*mine, strict=True), marker="o", color=colour, label=f"cores: {cores}")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("events")
        axes.set_ylabel(figure)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    picture.savefig(file, bbox_inches="tight", metadata={"Date": None})
