"""A mirror that is stopped lets MirrorMaker end its transactions first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MIRROR = """
import sys
from pathlib import Path
from shared.runtime.child import Child
from shared.dev import cli
from shared.dev.verbs import brokers
from shared.operations.mirror import Mirror
from tests.waiting import eventually

def start(mirror):
    maker = "trap 'sleep 0.2; echo transactions ended; exit' TERM; echo copying; while :; do sleep 0.1; done"
    mirror._process = Child(["sh", "-c", maker], mirror.log)
    eventually(lambda: "copying" in mirror.log.read_text())

brokers.Brokers.topic_ids = lambda brokers, topics: {brokers.bootstrap}
Mirror.start, brokers.local_stack.ROOT = start, Path(sys.argv.pop()) / "up"
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_mirror_that_is_stopped_ends_its_transactions(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    command = [sys.executable, "-c", MIRROR, "mirror", "second:9092", str(tmp_path)]
    environment = os.environ | {"ONEFOLD_BOOTSTRAP": "first:9092"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as mirror:
        assert mirror.stdout is not None
        assert "topics are copied from first:9092 to second:9092" in mirror.stdout.readline()
        mirror.send_signal(number)
        _, problems = mirror.communicate(timeout=30)
    assert (mirror.returncode, problems) == (0, "")
    assert (tmp_path / "mirror" / "mirror.log").read_text() == "copying\ntransactions ended\n"
