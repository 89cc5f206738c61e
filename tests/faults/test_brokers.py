"""Brokers are killed, frozen, moved and cut off; what was acknowledged stays, and nothing is repeated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from shared.dev.stack import Stack
from shared.operations.provision import set_config
from shared.runtime.positions import Place
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.faults.conftest import Cut
from tests.faults.harness import Log, Scenario, Violated, Void, await_in_time, observe
from tests.faults.verdict import CHANGELOG

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

SOME = 2_000  # output records
UNDER_WAY = 2_000  # commands: by the time that so many more are sent, what was acknowledged before is known
WITHOUT_A_BROKER_S = 50.0


@pytest.mark.long  # in short, one of three is, below
def test_the_only_broker_is_killed_and_comes_back(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        scenario.load_for(SOME)
        pair.kafka.kill(1)
        pair.kafka.restart(1)
        scenario.load_for(2 * SOME)


@pytest.mark.long
def test_the_only_broker_is_frozen_and_goes_on(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        scenario.load_for(SOME)
        pair.kafka.pause(1)
        _nothing_moves(scenario, scenario.random.randint(5, 25))
        pair.kafka.resume(1)
        scenario.recover_for(2 * SOME)


@pytest.mark.long
@pytest.mark.parametrize("hold_s", [0, 5, 20])
def test_the_workers_connections_are_cut(cut: Cut, seed: int, hold_s: int) -> None:
    """0: they are reset. 5: nothing passes, then they are reset. 20: the same, for longer than the session.

    Load and readers reach the broker as ever: nothing comes out because the workers alone do not.
    """
    stack, proxy = cut
    with Scenario(stack, seed) as scenario:
        scenario.load_for(SOME)
        for _ in range(3):
            proxy.hold()
            if hold_s:
                _nothing_comes_out(scenario, hold_s)
            if proxy.cut() == 0:
                raise Void("nothing was connected")
            proxy.heal()
            scenario.recover_for(SOME)


@pytest.mark.long
def test_the_workers_connections_are_slow(cut: Cut, seed: int) -> None:
    stack, proxy = cut
    with Scenario(stack, seed, per_s=300) as scenario:
        proxy.delay_s = scenario.random.uniform(0.05, 0.3)
        delayed = proxy.delayed
        scenario.load_for(SOME)
        if proxy.delayed < delayed + SOME:
            raise Void(f"only {proxy.delayed - delayed} bytes were delayed, while {SOME} records came out")
        proxy.heal()
        scenario.load_for(SOME)


@pytest.mark.long  # in short, brokers that are away, in tests/kafka, and kills of workers, beside this
def test_one_of_three_is_killed_and_comes_back(cluster: Stack, seed: int) -> None:
    with Scenario(cluster, seed) as scenario:
        scenario.load_for(SOME)
        leader = _leader(cluster, 0)
        cluster.kafka.kill(leader)
        observe(lambda: _leader(cluster, 0) not in (leader, -1), "another broker leads")
        scenario.load_for(SOME)
        cluster.kafka.restart(leader)
        scenario.recover_for(SOME)


@pytest.mark.long
def test_one_of_three_is_frozen_and_goes_on(cluster: Stack, seed: int) -> None:
    """It is the group's coordinator and leads some partitions: all go on without it, though no connection breaks."""
    with Scenario(cluster, seed) as scenario:
        scenario.load_for(SOME)
        victim = _coordinator(cluster)
        cluster.kafka.pause(victim)
        observe(lambda: victim not in _leaders(cluster), "other brokers lead")
        went_on = _each_goes_on(scenario)
        await_in_time(lambda: next(went_on), "every partition goes on", WITHOUT_A_BROKER_S)
        cluster.kafka.resume(victim)
        scenario.recover_for(SOME)


@pytest.mark.long
def test_two_of_three_are_killed_and_come_back(cluster: Stack, seed: int) -> None:
    """The third broker alone acknowledges nothing."""
    with Scenario(cluster, seed) as scenario:
        scenario.load_for(SOME)
        victims = scenario.random.sample([1, 2, 3], 2)
        for victim in victims:
            cluster.kafka.kill(victim)
        scenario.try_more(UNDER_WAY, requests=1)
        _nothing_is_acknowledged(scenario)
        for victim in victims:
            cluster.kafka.restart(victim)
        scenario.recover_for(2 * SOME)


@pytest.mark.long
def test_a_place_with_too_few_copies_is_named_and_stops_nobody(cluster: Stack, seed: int) -> None:
    """The events' topic demands all three copies for a while, and one broker is dead: no event can be written."""
    with Scenario(cluster, seed) as scenario, _copies_demanded(cluster, EVENTS.name, 3):
        scenario.load_for(SOME)
        victim = scenario.random.choice([1, 2, 3])
        cluster.kafka.kill(victim)
        scenario.try_more(UNDER_WAY, requests=4)
        observe(lambda: _short_of_copies(scenario), "the workers name the partition that misses copies")
        assert len(scenario.running()) == len(cluster.workers)
        cluster.kafka.restart(victim)
        scenario.recover_for(SOME)
        observe(lambda: not _short_of_copies(scenario), "they name it no more")


@pytest.mark.long
def test_leaders_move_away_and_back(cluster: Stack, seed: int) -> None:
    with Scenario(cluster, seed) as scenario:
        for broker in scenario.random.sample([1, 2, 3], 3):
            _move_its_leads(scenario, broker)


@pytest.mark.long
def test_a_leader_is_killed_during_a_restore(cluster: Stack, seed: int) -> None:
    with Scenario(cluster, seed) as scenario:
        scenario.load_for(4 * SOME)
        victim = scenario.random.choice(scenario.running())
        log = scenario.freeze_while_it_restores(victim)
        broker = scenario.random.choice([1, 2, 3])
        led = [p for p, leader in enumerate(_leaders(cluster, CHANGELOG)) if leader == broker]
        cluster.kafka.kill(broker)
        observe(lambda: broker not in _leaders(cluster, CHANGELOG), "other brokers lead")
        victim.resume()
        observe(partial(_restored, log, led), "a partition that it led is restored")
        scenario.load_for(SOME)
        cluster.kafka.restart(broker)
        scenario.recover_for(SOME)


def _short_of_copies(scenario: Scenario) -> set[Place]:
    """The partitions of which the workers say that too few copies are in sync."""
    troubles = [each for worker in scenario.running() for each in scenario.cluster(worker).get("troubles", ())]
    lacking = [each for each in troubles if "2 of 3 copies are in sync" in each["reason"]]
    return {Place(each["topic"], each["partition"]) for each in lacking}


@contextmanager
def _copies_demanded(stack: Stack, topic: str, copies: int) -> Iterator[None]:
    """Within the block a write to this topic is acknowledged by so many brokers, or refused."""
    _set_min_isr(stack, topic, copies)
    try:
        yield
    finally:
        _set_min_isr(stack, topic, 2)


def _set_min_isr(stack: Stack, topic: str, copies: int) -> None:
    set_config(AdminClient({"bootstrap.servers": stack.bootstrap}), topic, "min.insync.replicas", str(copies))


def _restored(log: Log, partitions: Iterable[int]) -> bool:
    return any(log.tells("restored", f'"{CHANGELOG}", {partition}]') for partition in partitions)


def _move_its_leads(scenario: Scenario, broker: int) -> None:
    cluster = scenario.stack
    observe(lambda: _leads_its_share(cluster, broker), f"{broker} leads what it leads by preference")
    scenario.load_for(SOME)
    cluster.kafka.kill(broker)
    observe(lambda: broker not in _leaders(cluster), f"{broker} leads nothing")
    scenario.load_for(SOME)
    cluster.kafka.restart(broker)
    observe(lambda: _leads_its_share(cluster, broker), f"{broker} leads them again")
    scenario.load_for(SOME)


def _nothing_moves(scenario: Scenario, wait_s: float) -> None:
    """Raises Void when records come out in the meantime."""
    time.sleep(1.0)  # what was under way
    before = scenario.decided
    time.sleep(wait_s)
    if scenario.decided > before:
        raise Void(f"{scenario.decided - before} records came out meanwhile")


def _nothing_comes_out(scenario: Scenario, wait_s: float) -> None:
    """Raises Void when records come out in the meantime, or no command goes in."""
    acknowledged = scenario.acknowledged
    _nothing_moves(scenario, wait_s)
    if scenario.acknowledged == acknowledged:
        raise Void("no command was acknowledged meanwhile")


def _nothing_is_acknowledged(scenario: Scenario) -> None:
    """Though commands are sent, to the brokers and over HTTP."""
    acknowledged, decided = scenario.acknowledged, scenario.decided
    scenario.try_more(5 * UNDER_WAY, requests=4)
    after = scenario.acknowledged - acknowledged, scenario.decided - decided
    if any(after):
        wrong = "{} commands acknowledged, {} records read with one of three brokers".format(*after)
        raise Violated([wrong], scenario.seed, scenario.stack.logs)


def _each_goes_on(scenario: Scenario) -> Iterator[bool]:
    """Whether commands of every partition were handled since the first call."""
    began = _positions(scenario)
    while True:
        now = _positions(scenario)
        yield all(now.get(partition, -1) > position for partition, position in began.items())


def _positions(scenario: Scenario) -> dict[int, int]:
    sources = [source for worker in scenario.running() for source in scenario.cluster(worker)["sources"]]
    return {source["partition"]: source["position"] for source in sources if source["topic"] == COMMANDS.name}


def _leaders(stack: Stack, topic: str = COMMANDS.name) -> list[int]:
    return [_leader(stack, partition, topic) for partition in range(TOPOLOGY.partitions)]


def _leads_its_share(stack: Stack, broker: int) -> bool:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0})
    partitions = admin.list_topics(COMMANDS.name, timeout=30).topics[COMMANDS.name].partitions.values()
    return all(partition.leader == broker for partition in partitions if partition.replicas[0] == broker)


def _coordinator(stack: Stack) -> int:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    group = admin.describe_consumer_groups([TOPOLOGY.group])[TOPOLOGY.group].result()
    return int(group.coordinator.id)


def _leader(stack: Stack, partition: int, topic: str = COMMANDS.name) -> int:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0})
    return int(admin.list_topics(topic, timeout=30).topics[topic].partitions[partition].leader)
