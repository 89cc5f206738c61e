"""The benchmarks of the real service run, and every answer they count was right."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import callers, load
from bench.begin import numbered
from bench.change import change
from bench.failover import measure, stopped
from bench.lab import Lab
from bench.speed import Load

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_a_stopped_owner_is_measured_and_no_client_gets_a_wrong_row(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        figures = measure(lab, "stopped", stopped, standbys=0).figures
    assert figures["wrong"] == 0
    assert figures["right"]
    assert isinstance(figures["longest_gap_s"], float)
    assert 0 < figures["longest_gap_s"] < 30


def test_every_load_is_measured_without_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WARM_UP_S", 1)
    monkeypatch.setattr(load, "MEASURED_S", 1)
    with Lab(tmp_path / "lab") as lab:
        report = load.load(lab, numbered(), None)
    assert {result.figures["failed"] for result in report.results} == {0}
    with_wrk = {f"{one}_vs_{other}" for one, other in load.RATIOS} if report.notes != [load.MISSING] else set()
    assert report.ratios.keys() == {"post_lines_1w_vs_goal", *with_wrk}


def test_callers_are_measured_beside_those_of_peers_and_none_of_ours_is_refused(tmp_path: Path) -> None:
    """For as long as always: of 256 callers, a peer answers none within a second."""
    with Lab(tmp_path / "lab") as lab:
        report = callers.callers(lab, numbered(), Load(1, 1, 1, rounds=1))
    left_out = {note.partition(" ")[0] for note in report.notes}
    peers = callers.PEERS.keys() - left_out
    sides = set() if report.notes == [load.MISSING] else {callers.OURS, *peers}
    steps, asked = report.results[: len(callers.STEPS)], report.results[len(callers.STEPS) :]
    assert [each.name for each in steps] == [f"step_{step}" for step in callers.STEPS if sides]
    assert {each.name for each in asked} == {f"{name}_{side}" for name in callers.ASKED for side in sides}
    assert all(each.figures["answered_per_s"] for each in asked)
    ours = [each for each in report.results if each.name.endswith(callers.OURS)]
    assert not any(each.figures["refused_per_s"] for each in ours)
    assert {f"{name}_vs_{peer}" for name in callers.ASKED for peer in peers if sides} <= report.ratios.keys()


def test_a_change_is_measured_and_each_charge_is_decided_once(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        report = change(lab, numbered(), Load(1, 1, 1, rounds=1, rate=50))
    *kinds, charges = report.results
    assert [each.name for each in kinds] == ["quiet", "rolling_restart", "deploy", "quiet_beside", "switch", "rollback"]
    assert all(each.figures["pause_max_s"] and each.figures["read_gap_max_s"] for each in kinds)
    assert charges.figures["answered"]
    assert [charges.figures[name] for name in ("lost", "twice", "wrong")] == [0, 0, 0]
