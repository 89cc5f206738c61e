"""The brokers' time is learned from the records that they stamp, as exactly as their answers are quick."""

from __future__ import annotations

import pytest
import structlog

from shared.runtime.clock import BrokersClock

NOW = 1_700_000_000.0


class Machine:
    """elapsed: since it was started. real: what its clock says, `ahead_s` ahead of the brokers'."""

    def __init__(self, ahead_s: float) -> None:
        self.elapsed, self.ahead_s = 100.0, ahead_s
        self.clock = BrokersClock(lambda: self.elapsed, lambda: self.brokers + self.ahead_s)

    @property
    def brokers(self) -> float:
        return NOW + self.elapsed

    def send(self, there_s: float = 0.0, back_s: float = 0.0) -> None:
        """One record, whose way there and whose answer's way back take so long."""
        sent = self.elapsed
        self.elapsed += there_s
        stamped = self.brokers
        self.elapsed += back_s
        self.clock.learn(stamped, sent)


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0, -40.0])
def test_it_is_this_machines_until_a_broker_has_told_and_the_brokers_from_then_on(ahead_s: float) -> None:
    machine = Machine(ahead_s)
    assert machine.clock.now() == machine.brokers + ahead_s
    machine.send()
    machine.elapsed += 60
    assert machine.clock.now() == pytest.approx(machine.brokers, abs=0.01)
    assert machine.clock.ahead_s == pytest.approx(ahead_s, abs=0.01)


def test_a_slow_answer_tells_no_more_than_its_way_allows_and_spoils_nothing() -> None:
    machine = Machine(7200.0)
    machine.send(there_s=2, back_s=8)
    assert machine.clock.now() - machine.brokers == pytest.approx(2, abs=8)
    machine.send()
    machine.send(there_s=5, back_s=5)
    assert machine.clock.now() == pytest.approx(machine.brokers, abs=0.01)


def test_setting_this_machines_clock_does_not_move_it() -> None:
    machine = Machine(0.0)
    machine.send()
    machine.ahead_s = 3600.0
    assert machine.clock.now() == pytest.approx(machine.brokers, abs=0.01)


def test_a_difference_is_told_with_both_times_once_and_when_it_is_gone() -> None:
    machine = Machine(7200.0)
    with structlog.testing.capture_logs() as told:
        machine.send()
        machine.send()
        machine.ahead_s = 0.0
        machine.send()
    assert [(each["log_level"], each["ahead_s"]) for each in told] == [("warning", 7200.0), ("info", 0.0)]
    assert (told[0]["ours"], told[0]["brokers"]) == ("2023-11-15T00:15:00Z", "2023-11-14T22:15:00Z")
    assert told[0]["fix"]
