"""A release rolls, one worker at a time, under load: nothing is parked, lost or answered wrong; rows are the fold."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial, reduce
from typing import Any

import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.topology import Service
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.faults.harness import Scenario, await_in_time
from tests.releases import changes
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

EVERYTHING = set(range(TOPOLOGY.partitions))
SOME = 300  # output records

Change = Callable[[Service], Service]


def test_a_new_event_version(released: Stack, seed: int) -> None:
    before = _events(released).keys()
    with Scenario(released, seed) as scenario:
        _roll_with_a_kill(scenario, changes.a_version)
    events = _check_accounts(released, changes.a_version(SERVICE), before)
    assert {event["schema_version"] for event in events if event["type"] == "account.charged"} == {2, 3}


@pytest.mark.long
def test_a_new_field_of_an_event_and_of_a_state(released: Stack, seed: int) -> None:
    before = _events(released).keys()
    with Scenario(released, seed) as scenario:
        _roll_with_a_kill(scenario, changes.a_field)
    events = _check_accounts(released, changes.a_field(SERVICE), before)
    assert {"reason" in event["data"] for event in events if event["type"] == "account.charged"} == {False, True}


@pytest.mark.long
def test_a_release_that_can_do_other_things_is_refused_by_name(released: Stack) -> None:
    first, second = released.workers
    for worker, change in ((first, changes.a_view), (second, changes.a_policy)):
        worker.stop()
        worker.command = changes.command(change)
        worker.spawn()
        eventually(lambda worker=worker: worker.is_ready() or worker.exit_code is not None)  # type: ignore[misc]
    assert second.exit_code
    assert "they can handle accounts-totals-changelog" in second.cause()
    assert "fix: release what is new first" in second.cause()
    eventually(first.is_ready)


def _roll_with_a_kill(scenario: Scenario, change: Change) -> None:
    """The second worker dies as one of the old release, and is back as one of the new within its session."""
    first, second = scenario.workers
    _replace(scenario, first, change)
    _await_stands_by(scenario, first, second)
    scenario.kill(second)
    second.command = changes.command(change)
    second.start()
    await_in_time(partial(_share, scenario), "the two own the partitions")
    scenario.recover_for(SOME)


def _replace(scenario: Scenario, worker: Worker, change: Change) -> None:
    """Some time under load follows."""
    worker.stop()
    worker.command = changes.command(change)
    worker.start()
    scenario.recover_for(SOME)


def _await_stands_by(scenario: Scenario, owner: Worker, other: Worker) -> None:
    await_in_time(
        lambda: scenario.owned(owner, asked=other) == EVERYTHING and other.is_ready(), f"{owner.name} owns everything"
    )
    scenario.load_for(SOME)


def _share(scenario: Scenario) -> bool:
    owned = [scenario.owned(worker) for worker in scenario.workers]
    return all(owned) and set().union(*owned) == EVERYTHING


def _events(stack: Stack) -> Mapping[str, list[bytes]]:
    """By account."""
    found: dict[str, list[bytes]] = {}
    for _, key, value in read_all(Brokers(stack.bootstrap), EVENTS.name):
        assert key is not None
        assert value is not None
        found.setdefault(key.decode(), []).append(value)
    return found


def _rows(stack: Stack, changelog: str) -> Mapping[bytes, bytes]:
    """The last row of each key."""
    rows = {key: value for _, key, value in read_all(Brokers(stack.bootstrap), changelog) if key is not None}
    return {key: value for key, value in rows.items() if value is not None}


def _check_accounts(stack: Stack, release: Service, before: Collection[str]) -> list[dict[str, Any]]:
    """The row of each account that was not there before is the fold of its events, by this release. Returns these."""
    decider = release.decider
    assert decider is not None
    events = {name: values for name, values in _events(stack).items() if name not in before}
    rows = _rows(stack, TOPOLOGY.changelog(ACCOUNTS).name)
    for name, values in events.items():
        facts = [decider.event_codec.decode(value).data for value in values]
        row = decider.row_codec.decode_whole(rows[name.encode()])
        assert row.state == reduce(decider.evolve, facts, decider.initial), name
    return [json.loads(value) for values in events.values() for value in values]
