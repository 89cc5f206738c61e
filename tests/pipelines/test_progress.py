"""Who waits for Spark sees how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines import progress
from tests.waiting import Deadline

DEADLINE_S = 60.0


def test_a_log_is_told_of_a_step_while_it_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    monkeypatch.setattr(progress, "has_bar", lambda: False)
    told, seen = tmp_path / "told", list[str]()

    def until_told(batches: Iterable[Any]) -> Iterator[Any]:
        deadline = Deadline(DEADLINE_S)
        while not told.exists():
            deadline.check("nobody was told")
            time.sleep(0.01)
        yield from batches

    def say(line: str) -> None:
        seen.append(line)
        told.touch()

    monkeypatch.setattr(progress, "_say", say)
    with progress.reporting_progress(spark, "rebuild"):
        assert spark.range(4, numPartitions=4).mapInArrow(until_told, "id long").count() == 4
    assert seen[0].startswith("rebuild: 0 of 4 tasks of this step (")
