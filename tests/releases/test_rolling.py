"""A release rolls, one worker at a time, under load: nothing is parked, lost or answered wrong; rows are the fold."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, reduce
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.domain import Event
from shared.domain.envelope import encode
from shared.domain.row import RowCodec
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.kafka.spans import read_all
from shared.operations.provision import TopologyMismatch, provision, set_config
from shared.testing.scenario import happened
from shared.topology import Service, Topic, Topology
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from tests.faults.harness import Scenario, await_in_time
from tests.releases import changes
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

EVERYTHING = set(range(TOPOLOGY.partitions))
SOME = 300  # output records
FEED_EVERY_S = 0.05

Change = Callable[[Service], Service]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message", "versions"),
    [
        (changes.a_version, "account.charged", {2, 3}),
        (changes.a_renamed_field, "account.opened", {1, 2}),
        (changes.a_removed_field, "account.opened", {1, 2}),
        (changes.a_command_version, "account.charge", {1, 2}),
    ],
)
def test_a_message_that_changes(released: Stack, seed: int, change: Change, message: str, versions: set[int]) -> None:
    before = _events(released).keys()
    with Scenario(released, seed) as scenario:
        _roll_with_a_kill(scenario, change)
    events = _check_accounts(released, change(SERVICE), before)
    written = [*events, *_charges(released)]
    assert {each["schema_version"] for each in written if each["type"] == message} == versions


@pytest.mark.long
@pytest.mark.parametrize("anew", [None], indirect=True)
def test_a_command_an_event_and_a_phase(anew: Stack, seed: int) -> None:
    with Scenario(anew, seed) as scenario, _fed(anew):
        _roll_with_a_kill(scenario, changes.a_command_an_event_and_a_phase)
    _check_signed(anew, "account.greeted")
    events = _check_accounts(anew, changes.a_command_an_event_and_a_phase(SERVICE), ())
    assert "account.greeted" in {event["type"] for event in events}


@pytest.mark.long
@pytest.mark.parametrize("change", [changes.other_code, changes.an_index])
def test_what_changes_nothing_that_is_written_is_owned_by_both_releases(
    released: Stack, seed: int, change: Change
) -> None:
    before = _events(released).keys()
    with Scenario(released, seed) as scenario:
        for release in (change, None, change):
            for worker in scenario.workers:
                _replace(scenario, worker, release)
                await_in_time(partial(_share, scenario), "the two own the partitions")
    _check_accounts(released, change(SERVICE), before)


@pytest.mark.long
@pytest.mark.parametrize("anew", [changes.no_history], indirect=True)
def test_a_history_for_the_first_time(anew: Stack, seed: int) -> None:
    with Scenario(anew, seed) as scenario:
        _roll_with_a_kill(scenario, None)


@pytest.mark.long
@pytest.mark.parametrize("anew", [None], indirect=True)
def test_a_longer_memory(anew: Stack, seed: int) -> None:
    later = changes.a_longer_memory(SERVICE).topology
    assert later.outcomes is not None
    changelog = later.changelog(later.outcomes).name
    with pytest.raises(TopologyMismatch, match=f"--topic {changelog} --add-config retention.ms=345600000"):
        provision([later], anew.settings)
    set_config(AdminClient({"bootstrap.servers": anew.bootstrap}), changelog, "retention.ms", "345600000")
    eventually(partial(_provisions, later, anew))  # brokers take a moment to know it
    with Scenario(anew, seed) as scenario:
        _roll_with_a_kill(scenario, changes.a_longer_memory)


def test_a_view_a_policy_and_a_field_at_once(released: Stack, seed: int) -> None:
    before = _events(released).keys()
    with Scenario(released, seed) as scenario, _fed(released):
        _roll_with_a_kill(scenario, changes.all_at_once)
    _check_totals(released)
    _check_signed(released)
    events = _check_accounts(released, changes.all_at_once(SERVICE), before)
    assert {"reason" in event["data"] for event in events if event["type"] == "account.charged"} == {False, True}


@pytest.mark.long
def test_a_view_and_a_policy_of_new_sources_and_back_and_on(released: Stack, seed: int) -> None:
    """The only worker that has them is killed, and back within its session: nobody reads on without them."""
    with Scenario(released, seed) as scenario, _fed(released):
        first, second = scenario.workers
        _replace(scenario, first, changes.a_view_and_a_policy)
        _await_stands_by(scenario, first, second)
        scenario.kill(first)
        first.start()
        _replace(scenario, second, changes.a_view_and_a_policy)
        await_in_time(partial(_share, scenario), "the two own the partitions")
        for release in (None, changes.a_view_and_a_policy):
            for worker in scenario.workers:
                _replace(scenario, worker, release)
    _check_totals(released)
    _check_signed(released)


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


def _roll_with_a_kill(scenario: Scenario, change: Change | None) -> None:
    """The second worker dies as one of the old release, and is back as one of the new within its session.

    None: to the present release.
    """
    first, second = scenario.workers
    _replace(scenario, first, change)
    _await_stands_by(scenario, first, second)
    scenario.kill(second)
    second.command = changes.command(change)
    second.start()
    await_in_time(partial(_share, scenario), "the two own the partitions")
    scenario.recover_for(SOME)


def _replace(scenario: Scenario, worker: Worker, change: Change | None) -> None:
    """None: by the present release. Some time under load follows."""
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


@contextmanager
def _fed(stack: Stack) -> Iterator[None]:
    """Inside the block, other services write events all the time."""
    ending, run = threading.Event(), uuid.uuid4().hex[:8]
    producer = Producer(producer_config(stack.bootstrap))

    def write(topic: Topic, fact: Event, name: str, number: int) -> None:
        body = encode(happened(fact, aggregate_id=name, sequence=number + 1))
        producer.produce(topic.name, body, name, partition_of(name.encode(), TOPOLOGY.partitions))

    def feed() -> None:
        for number in count():
            write(changes.VISITS, changes.Visited(minutes=number), f"visitor-{number % 40}", number)
            write(changes.SIGNED, changes.Signed(account_id=f"signed-{run}-{number}"), f"{run}-{number}", number)
            if ending.wait(FEED_EVERY_S):
                break
        producer.flush()

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ending.set()
        feeder.join()


def _events(stack: Stack) -> Mapping[str, list[bytes]]:
    """By account."""
    found: dict[str, list[bytes]] = {}
    for _, key, value in read_all(Brokers(stack.bootstrap), EVENTS.name):
        assert key is not None
        assert value is not None
        found.setdefault(key.decode(), []).append(value)
    return found


def _charges(stack: Stack) -> list[dict[str, Any]]:
    """The commands; some records are cut short, so that they are none."""
    found = []
    for _, _, value in read_all(Brokers(stack.bootstrap), COMMANDS.name):
        if value is not None and b'"account.charge"' in value:
            with suppress(ValueError):
                found.append(json.loads(value))
    return found


def _rows(stack: Stack, changelog: str) -> Mapping[bytes, bytes]:
    """The last row of each key."""
    rows = {key: value for _, key, value in read_all(Brokers(stack.bootstrap), changelog) if key is not None}
    return {key: value for key, value in rows.items() if value is not None}


def _facts(stack: Stack, topic: Topic) -> list[tuple[bytes, dict[str, Any]]]:
    """By key, as they are in the log: brokers may not have taken all that was sent."""
    found = read_all(Brokers(stack.bootstrap), topic.name)
    facts = [(key, json.loads(value)["data"]) for _, key, value in found if key is not None and value is not None]
    assert facts
    return facts


def _provisions(topology: Topology, stack: Stack) -> bool:
    with suppress(TopologyMismatch):
        provision([topology], stack.settings)
        return True
    return False


def _check_totals(stack: Stack) -> None:
    """The rows of the view are the fold of all visits."""
    expected = dict[bytes, changes.Total]()
    for key, data in _facts(stack, changes.VISITS):
        before = expected.get(key, changes.Total())
        expected[key] = changes.Total(visits=before.visits + 1, minutes=before.minutes + data["minutes"])
    changelog = changes.a_view(SERVICE).topology.changelog(changes.TOTALS).name
    decode = RowCodec[changes.Total](changes.Total).decode_whole
    eventually(
        lambda: {key: decode(row).state for key, row in _rows(stack, changelog).items()},
        lambda found: found == expected,
    )


def _check_signed(stack: Stack, led_to: str = "account.opened") -> None:
    """Each event of a contract has led to one account."""
    signed = [data["account_id"] for _, data in _facts(stack, changes.SIGNED)]

    def wrong() -> dict[str, list[str]]:
        events = _events(stack)
        types = {name: [json.loads(event)["type"] for event in events.get(name, ())] for name in signed}
        return {name: found for name, found in types.items() if found != [led_to]}

    eventually(wrong, lambda found: not found)


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
