"""`repartition` as one types it in a checkout of baskets: NAME OLD NEW N; it kills itself with the N-th record that it
copies back.
"""

from __future__ import annotations

import os
import signal
import sys

from shared.dev.repartition import repartition
from shared.kafka.spans import WholeRecord
from shared.operations import repartition as operations
from shared.runtime.settings import load_settings
from tests.engine.baskets import baskets, tales_of


class Dying(operations._Writer):
    left = 0

    def write(self, number: int, record: WholeRecord) -> None:
        super().write(number, record)
        if not self._topic.endswith((operations._STAGED, operations.JOURNAL.name)):
            Dying.left -= 1
            if Dying.left == 0:
                self.flush()  # half of a topic is there
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    name, old, new, dies = sys.argv[1], *map(int, sys.argv[2:])
    Dying.left = dies
    operations._Writer = Dying  # type: ignore[misc]
    repartition([baskets(name, old), tales_of(name, old)], load_settings(), new, dry_run=False)
