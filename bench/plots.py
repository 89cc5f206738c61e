"""What a run measured, as SVG pictures; each is drawn when the run has its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.report import Report, Result

_SIZE = (8, 3)
_OURS, _THEIRS = "#3b6ea5", "#b8b8b8"
_SIDES = {
    "stock_faust": "stock Faust",
    "quix_eos": "Quix Streams",
    "kafka_streams_eos": "Kafka Streams",
    "engine_raw": "the engine, raw",
    "engine": "the engine, typed",
}


def draw(report: Report, folder: Path) -> None:
    """speed.svg, speed_wide.svg, restore.svg, growth.svg, rebuild.svg, parts.svg and post.svg, as far as they were
    measured.
    """
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
    steps = [result for name, result in found.items() if name.startswith("step_")]
    if steps:
        _bars(steps, "ms", "milliseconds of a POST that comes alone", folder / "post.svg")
    rebuilds = [result for name, result in found.items() if name.startswith("rebuild_")]
    if rebuilds:
        _lines(rebuilds, ("total_s", "peak_mb"), folder / "rebuild.svg")
    growth = [result for name, result in found.items() if "_events_" in name and result not in rebuilds]
    if growth:
        _bars(growth, "events_per_s", "events a second", folder / "growth.svg")


def _bars(results: Sequence[Result], figure: str, label: str, file: Path) -> None:
    picture = Figure(figsize=_SIZE)
    axes = picture.subplots()
    values = [_number(result, figure) for result in results]
    colours = [_OURS if "engine" in result.name else _THEIRS for result in results]
    places = range(len(results))  # not the labels: equal ones would share a bar
    bars = axes.barh(places, values, color=colours)
    axes.set_yticks(places, [_label(result) for result in results])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.bar_label(bars, [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values], padding=4)
    axes.set_xlim(0, max(values) * 1.15)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(file, bbox_inches="tight", metadata={"Date": None})


def _label(result: Result) -> str:
    """Its name, in words."""
    figures = result.figures
    if result.name.startswith(("part_", "step_")):
        return result.name.partition("_")[2].replace("_", " ")
    if result.name.startswith("restore_"):
        side = result.name.removeprefix("restore_").removesuffix("_wide").partition("_beside_")[0]
        return f"{_SIDES[side]}, {figures['records']:,} records, {figures['keys']:,} keys"
    if "_events_" in result.name:
        return f"{figures['events']:,} events, {figures['keys']:,} keys"
    return _SIDES[result.name.removesuffix("_wide")]


def _lines(results: Sequence[Result], figures: Sequence[str], file: Path) -> None:
    """Each figure over the number of events, a line for each number of cores."""
    picture = Figure(figsize=_SIZE, layout="constrained")
    all_cores = sorted({_number(result, "cores") for result in results}, reverse=True)
    for axes, figure in zip(picture.subplots(1, len(figures)), figures, strict=True):
        for cores, colour in zip(all_cores, (_OURS, _THEIRS), strict=False):
            mine = sorted(
                (_number(result, "events"), _number(result, figure))
                for result in results
                if result.figures["cores"] == cores
            )
            axes.plot(*zip(*mine, strict=True), marker="o", color=colour, label=f"cores: {cores:.0f}")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.1 * max(_number(result, figure) for result in results))
        axes.set_xlabel("events")
        axes.set_ylabel(figure)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
    picture.savefig(file, metadata={"Date": None})


def _number(result: Result, figure: str) -> float:
    return float(str(result.figures[figure]))
