"""What the scenarios of one run have in common, in however many processes they are run."""

from __future__ import annotations

import os
import random
from collections import Counter

SEED = "FAULTS_SEED"

SEEN: Counter[str] = Counter()
"""What every scenario together has gone through and found exact."""


def choose_seed() -> None:
    """Before there are other processes: all have to collect the same tests."""
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(10**6)))


def new_seed() -> int:
    """FAULTS_SEED repeats a run's choices; their timing remains the machine's."""
    return int(os.environ[SEED])


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())
