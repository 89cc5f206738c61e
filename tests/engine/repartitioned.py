"""`repartition` as one types it in a checkout of baskets: NAME OLD NEW N; it kills itself when it has copied back N
records.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from shared.dev.repartition import repartition
from shared.kafka.brokers import Positions
from shared.kafka.verbatim import copy_batches
from shared.operations import repartition as operations
from shared.runtime.settings import load_settings
from tests.engine.baskets import baskets, tales_of

_left = 0


def _dying(client: Any, source: str, target: str, ends: Positions, tell: Callable[[int], object]) -> None:
    def count(records: int) -> None:
        global _left
        tell(records)
        _left -= records
        if _left <= 0:  # half of a topic is there
            os.kill(os.getpid(), signal.SIGKILL)

    copy_batches(client, source, target, ends, count)


if __name__ == "__main__":
    name, old, new, dies = sys.argv[1], *map(int, sys.argv[2:])
    _left = dies
    operations.copy_batches = _dying  # type: ignore[attr-defined]
    repartition([baskets(name, old), tales_of(name, old)], load_settings(), new, dry_run=False)
