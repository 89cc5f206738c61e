"""The benchmark of failover runs, and what it counts as right was right."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.failover import measure, stopped
from bench.lab import Lab

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_a_stopped_owner_is_measured_and_nobody_is_told_a_wrong_row(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        figures = measure(lab, "stopped", stopped, standbys=0).figures
    assert figures["wrong"] == 0
    assert figures["right"]
    assert isinstance(figures["longest_gap_s"], float)
    assert 0 < figures["longest_gap_s"] < 30
