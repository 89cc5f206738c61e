"""Each guard of the engine is removed in turn, and a scenario on real processes has to notice.

What counts is a difference in the log or the rows: not a worker that has ended, nor what takes too long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from shared.dev.stack import Stack
from tests.faults import broken, test_workers
from tests.faults.harness import Violated

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

DIFFERENCE = re.compile("events of|change of| shows ")

Faults = Sequence[Callable[[], None]]
Noticed = Callable[[Stack, int], None]

_superseded = partial(test_workers.test_superseded_inside_a_flush, step="before_produce")
MISSING: Sequence[tuple[Faults, Noticed]] = (
    ([broken.commits_in_no_generation], _superseded),
    ([broken.commits_offsets_before_its_records], _superseded),
    ([broken.believes_any_beginning, broken.drops_first_batches], test_workers.test_restarted_one_after_the_other),
    ([broken.counts_what_it_fetched_as_done, broken.fetches_seldom], test_workers.test_restarted_one_after_the_other),
    ([broken.stores_before_it_commits, broken.aborts_every_tenth_batch], test_workers.test_batches_are_aborted),
    ([broken.decides_before_it_is_restored], test_workers.test_robbed_of_their_stores),
)


@pytest.mark.parametrize(("faults", "noticed"), MISSING, ids=[",".join(f.__name__ for f in m[0]) for m in MISSING])
def test_a_missing_guard_is_noticed(pair: Stack, seed: int, faults: Faults, noticed: Noticed) -> None:
    for worker in pair.workers[:2]:
        worker.kill()
        worker.command = broken.command(*faults)
        worker.start()
    with pytest.raises(Violated) as caught:  # nothing that is late or void proves anything
        noticed(pair, -seed)  # the same choices, with the load of the long tier
    differences = list(filter(DIFFERENCE.search, caught.value.violations))
    print(f"{len(differences)} of {len(caught.value.violations)} violations are differences")  # noqa: T201
    assert differences, caught.value
