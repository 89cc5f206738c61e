"""What the loss of a broker would cost is said before it is lost."""

from __future__ import annotations

import pytest

from shared.dev.status import next_loss
from shared.settings import Settings

CLUSTER = Settings(replication=3, min_isr=2)


@pytest.mark.parametrize(
    ("in_sync", "told", "wrong"),
    [
        ([3, 3], "nothing", False),
        ([3, 2], "writes to 1 partitions until it is back; 1 partitions have fewer than 3 copies in sync", True),
        ([1, 2], "the records of 1 partitions, which have no second copy; 2 partitions have fewer than 3", True),
    ],
)
def test_three_brokers(in_sync: list[int], told: str, wrong: bool) -> None:
    line = next_loss(in_sync, CLUSTER)
    assert line.text.startswith(f"with the next broker: {told}")
    assert line.wrong == wrong


def test_one_broker_is_no_alarm_but_no_safety() -> None:
    line = next_loss([1, 1], Settings())
    assert line.text == "with the next broker: the records of 2 partitions, which have no second copy"
    assert not line.wrong
