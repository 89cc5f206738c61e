"""The runbook for a lost region, from its first step to its last."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from demo import drill
from demo.drill import STAGES, Drill
from shared.dev.stages import Stage, StageFailed, stage
from shared.operations.mirror import Mirror, MirrorFailed
from shared.runtime.child import Child

FEW = 300


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not find_spec("pyspark"), reason="Spark is not installed")
def test_the_shop_goes_on_at_the_second_cluster() -> None:
    command = [sys.executable, "-m", "demo.drill", "--purchases", str(FEW)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1100)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    *told, verdict = run.stdout.splitlines()
    stages = [re.fullmatch(r"\[ ?(\d+)/13\] (\w+) .* \(\d+\.\d s\)", line) for line in told]
    assert [stage[1] for stage in stages if stage] == [str(number) for number in range(1, STAGES + 1)]
    lost = re.fullmatch(
        r"verdict: ok (\d+) of \1 accounts agree; (\d+) of (\d+) answered orders were lost.* until sent again", verdict
    )
    assert lost
    assert FEW // 2 <= int(lost[3]) < FEW


class Shop:
    """Stands in for the shop and for the log: accepts everything, but answers no order."""

    last = ()

    def __init__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def append(self, *_: object) -> None:
        pass

    async def has_decided(self, _: object) -> bool:
        return True

    async def place(self, _: object) -> None:
        raise StageFailed("POST /orders/cdnow-2: 500", "see the workers' logs")


def lose(mirror: Mirror, mirrored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the drill up to the loss of the first cluster. The second cluster knows `mirrored` accounts."""

    def begin(name: str) -> AbstractContextManager[Stage]:
        return stage("[1/1]", name, StringIO())

    monkeypatch.setattr(drill, "Stack", lambda *_, **__: SimpleNamespace(bootstrap="nowhere:1"))
    monkeypatch.setattr(drill, "CommandProducer", lambda *_: None)
    monkeypatch.setattr(drill, "check", lambda _: None)
    monkeypatch.setattr(drill, "Log", Shop)
    monkeypatch.setattr(drill, "Shop", Shop)
    monkeypatch.setattr(Drill, "_mirrored", lambda _: mirrored)
    asyncio.run(asyncio.wait_for(Drill(10, begin)._lose(mirror), timeout=60))


def test_a_drill_fails_at_the_first_order_that_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StageFailed, match="500"):
        lose(Mirror({}, tmp_path), 100, monkeypatch)


def test_a_drill_fails_when_its_mirror_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror({}, tmp_path)
    mirror._process = Child(["false"], mirror.log)
    with pytest.raises(MirrorFailed, match=rf"ended with 1: see {mirror.log}"):
        lose(mirror, 0, monkeypatch)
    mirror.stop()
