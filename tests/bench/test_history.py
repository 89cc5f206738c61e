"""A rebuild is measured together with what it is compared with; no test judges its speed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.begin import numbered
from bench.lab import Lab
from bench.speed import Load


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_rebuild_is_measured_beside_a_replay(tmp_path: Path) -> None:
    from bench.history import spark

    with Lab(tmp_path / "lab") as lab:
        report = spark(lab, numbered(), Load(events=20_000, keys=10, wide_keys=10, rounds=1))
    sizes = {(result.figures["events"], result.figures.get("cores")) for result in report.results}
    assert sizes >= {(2_000, os.cpu_count()), (20_000, 1), (20_000, None), (200_000, os.cpu_count()), (200_000, None)}
    expected = {"rebuild_vs_stock_faust_2e4", "rebuild_vs_engine_2e4", "rebuild_vs_engine_2e5"}
    assert report.ratios.keys() == expected
    assert all(result.figures["rows"] == 10 for result in report.results if "rows" in result.figures)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_rebuild_is_measured_from_archives_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import history

    monkeypatch.setattr(history, "MANY_PARTITIONS", 9)
    monkeypatch.setattr(history, "GROWTH", (1, 2))
    with Lab(tmp_path / "lab") as lab:
        report = history.archived(lab, numbered(), Load(events=2_000, keys=10, wide_keys=10, rounds=1))
    measured = [result.name for result in report.results]
    assert measured == [f"archived_{count}_{number}_partitions" for count in (2_000, 4_000) for number in (8, 9)]
    assert all(result.figures["rows"] == 10 for result in report.results)
