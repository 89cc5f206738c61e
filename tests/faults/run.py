"""What the scenarios of one run share, across all its processes."""

from __future__ import annotations

import os
import random
from collections import Counter

SEED = "FAULTS_SEED"

SEEN: Counter[str] = Counter()
"""What all scenarios together have done and verified, by kind."""


def choose_seed() -> None:
    """Called before other processes start: all have to collect the same tests."""
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(10**6)))


def new_seed() -> int:
    """The same FAULTS_SEED repeats a run's choices, but not their timing."""
    return int(os.environ[SEED])


def is_short(seed: int) -> bool:
    """Whether it is the one of the short tier."""
    return seed == new_seed()


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())
