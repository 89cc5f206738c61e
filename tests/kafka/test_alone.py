"""One process at a time holds what a group has, and one that was away for too long is told."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from shared.kafka.alone import alone
from shared.operations.provision import TopicSpec, create_topics
from shared.runtime.checkout import CHECKOUT

pytestmark = pytest.mark.broker

TOPIC = "alone.journal.v1"
HOLDER = """
import sys, time
from shared.kafka.alone import NotAlone, alone
with alone(sys.argv[1], "turnstile", sys.argv[2]) as check:
    print("in", flush=True)
    try:
        while True:
            check()
            time.sleep(0.05)
    except NotAlone as told:
        print(told, flush=True)
"""


def test_who_was_away_for_too_long_is_told_and_the_next_one_is_alone(bootstrap: str) -> None:
    create_topics({TOPIC: TopicSpec(1, 1, {})}, bootstrap)
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})\n{HOLDER}"]
    with subprocess.Popen([*command, bootstrap, TOPIC], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "in\n"
            holder.send_signal(signal.SIGSTOP)
            with alone(bootstrap, "turnstile", TOPIC) as check:
                check()
                holder.send_signal(signal.SIGCONT)
                assert "this `turnstile` was not heard of for 6 s; fix: do it again" in holder.stdout.readline()
                check()
        finally:
            holder.kill()
