"""A lease ends on time, whichever of the two clocks stood still meanwhile."""

from __future__ import annotations

import pytest

from shared.engine.lease import Lease

LENGTH_S = 10.0


class Clocks:
    """elapsed: stands still while a hypervisor has stopped the machine. real: can be set, also back."""

    def __init__(self) -> None:
        self.elapsed, self.real = 100.0, 1_700_000_000.0
        self.lease = Lease(LENGTH_S, lambda: self.elapsed, lambda: self.real)

    def run(self, seconds: float) -> None:
        self.elapsed += seconds
        self.real += seconds

    def extend(self) -> None:
        self.lease.extend(self.elapsed)

    def holds(self) -> bool:
        return self.lease.holds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_it_holds_from_a_heartbeat_for_its_length(clocks: Clocks) -> None:
    assert not clocks.holds()
    clocks.extend()
    clocks.run(LENGTH_S - 1)
    assert clocks.holds()
    clocks.run(1)
    assert not clocks.holds()


def test_it_begins_when_the_heartbeat_was_sent(clocks: Clocks) -> None:
    sent = clocks.elapsed
    clocks.run(LENGTH_S)
    clocks.lease.extend(sent)
    assert not clocks.holds()


def test_it_is_over_when_it_is_ended_until_it_is_extended(clocks: Clocks) -> None:
    clocks.extend()
    clocks.lease.end()
    assert not clocks.holds()
    clocks.extend()
    assert clocks.holds()


def test_it_is_over_when_the_machine_was_stopped_for_longer_than_its_rest(clocks: Clocks) -> None:
    clocks.extend()
    clocks.run(4)
    clocks.real += 5
    assert clocks.holds()
    clocks.real += 1
    assert not clocks.holds()


def test_an_answer_that_waited_while_the_machine_was_stopped_does_not_extend_it(clocks: Clocks) -> None:
    """The next one does."""
    sent = clocks.elapsed
    clocks.real += LENGTH_S
    clocks.lease.extend(sent)
    assert not clocks.holds()
    clocks.extend()
    assert clocks.holds()


def test_a_clock_that_is_set_back_a_little_does_not_prolong_it(clocks: Clocks) -> None:
    clocks.extend()
    clocks.real -= 1
    clocks.run(LENGTH_S - 1)
    assert clocks.holds()
    clocks.run(1)
    assert not clocks.holds()


def test_it_is_over_when_the_clock_is_set_back_far_until_a_heartbeat_is_sent_and_answered(clocks: Clocks) -> None:
    """The machine may have been stopped meanwhile, for longer than the lease."""
    sent = clocks.elapsed
    clocks.extend()
    clocks.real += LENGTH_S - 3600
    assert not clocks.holds()
    clocks.lease.extend(sent)
    assert not clocks.holds()
    clocks.extend()
    assert clocks.holds()
