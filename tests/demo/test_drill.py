"""The runbook for a lost region, from its first step to its last."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from demo.drill import STAGES

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

FEW = 300


@pytest.mark.skipif(not find_spec("pyspark"), reason="Spark is not installed")
def test_the_shop_goes_on_at_the_second_cluster() -> None:
    drill = [sys.executable, "-m", "demo.drill", "--purchases", str(FEW)]
    run = subprocess.run(drill, capture_output=True, text=True, timeout=1100)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    *told, verdict = run.stdout.splitlines()
    stages = [re.fullmatch(r"\[ ?(\d+)/12\] (\w+) .* \(\d+\.\d s\)", line) for line in told]
    assert [stage[1] for stage in stages if stage] == [str(number) for number in range(1, STAGES + 1)]
    lost = re.fullmatch(
        r"verdict: ok (\d+) of \1 accounts agree; (\d+) of (\d+) answered orders were lost.* until sent again", verdict
    )
    assert lost
    assert FEW // 2 <= int(lost[3]) < FEW
