"""The benchmark runs and its file has the promised form; how fast it was is no test's business."""

import json
from pathlib import Path

import pytest

from bench.begin import numbered
from bench.lab import Lab
from bench.progress import Sample, steady
from bench.report import Report
from bench.speed import Load, engine


@pytest.mark.broker
@pytest.mark.slow
def test_the_engine_and_stock_faust_are_measured_and_written_down(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        report = engine(lab, numbered(), Load(events=2_000, keys=10, rounds=1))
    report.write(tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [result["name"] for result in figures["results"]] == ["stock_faust", "engine"]
    assert all(result["events_per_s"] > 0 for result in figures["results"])
    assert figures["ratios"].keys() == {"engine_vs_stock_faust"}
    assert figures["machine"]["cpus"] >= 1


def test_start_up_and_the_input_s_end_are_not_measured() -> None:
    samples = [
        Sample(at_s, handled) for at_s, handled in ((0, 0), (9, 100), (10, 200), (11, 300), (12, 400), (20, 500))
    ]
    measured = steady(samples, total=500)
    assert (measured.events, measured.seconds) == (300, 3)


def test_a_run_with_too_few_commits_is_measured_whole() -> None:
    measured = steady([Sample(0, 0), Sample(2, 10), Sample(4, 20)], total=20)
    assert measured.events_per_s == 5


def test_figures_are_lines_to_read() -> None:
    report = Report(ratios={"engine_vs_stock_faust": 41.26}, notes=["left out: Java is missing"])
    assert str(report).splitlines() == ["engine_vs_stock_faust        41.26", "left out: Java is missing"]
