"""What a run measured, as lines to read and as JSON to compare."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

Figure = float | int | str | list[float]

_LIBRARIES = ("aiokafka", "confluent-kafka", "faust-streaming", "pydantic", "rocksdict")


@dataclass(frozen=True, slots=True)
class Result:
    """One thing measured. figures: by name with its unit, as in `events_per_s` or `p99_ms`."""

    name: str
    figures: Mapping[str, Figure]

    def __str__(self) -> str:
        return f"{self.name:<28} " + "  ".join(f"{key} {_text(value)}" for key, value in self.figures.items())


@dataclass(slots=True)
class Report:
    """notes: what was left out, and why."""

    results: list[Result] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def add(self, other: Report) -> None:
        self.results += other.results
        self.ratios |= other.ratios
        self.notes += other.notes

    def result(self, name: str) -> Result:
        return next(result for result in self.results if result.name == name)

    def write(self, file: Path) -> None:
        results = [{"name": result.name, **result.figures} for result in self.results]
        content = {"results": results, "ratios": self.ratios, "notes": self.notes, "machine": self.machine}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=2) + "\n")

    def __str__(self) -> str:
        ratios = [f"{name:<28} {ratio:.2f}" for name, ratio in self.ratios.items()]
        return "\n".join([*map(str, self.results), *ratios, *self.notes])


def machine() -> dict[str, Any]:
    """What the figures depend on. load: the mean number of runnable processes in the minute before the run."""
    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        "python": sys.version.split()[0],
        **{name: version(name) for name in _LIBRARIES},
    }


def _text(value: Figure) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_text(each) for each in value) + "]"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else value
