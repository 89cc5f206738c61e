import subprocess
import sys
from pathlib import Path

from shared.dev.processes import identify
from tests.waiting import eventually

PARENT = """
import sys, time
from pathlib import Path
from shared.runtime.child import Child
stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
print(Child(stubborn, Path(sys.argv[1]), grace_s=1).pid, flush=True)
time.sleep(60)
"""


def test_a_child_that_ignores_sigterm_is_killed_after_its_parent_ends(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    with subprocess.Popen([sys.executable, "-c", PARENT, log], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = identify(int(parent.stdout.readline()))
        eventually(lambda: log.exists() and "ready" in log.read_text())
        parent.kill()
    eventually(lambda: not child.running)
