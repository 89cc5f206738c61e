"""Workers are killed, frozen, superseded, scaled and robbed of their stores; nothing is lost or repeated."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.runtime.failpoints import STEPS
from tests.accounts.topology import ACCOUNTS, COMMANDS, TOPOLOGY
from tests.conftest import accounts_command
from tests.faults import broken
from tests.faults.harness import DEADLINE_S, Log, Scenario, await_in_time, observe, runs
from tests.faults.run import is_short
from tests.faults.verdict import CHANGELOG
from tests.waiting import Deadline

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

EVERYTHING = set(range(TOPOLOGY.partitions))
SOME = 2_000  # output records
TAKEN_OVER_S = 30.0  # with a session of 1.5


def test_killed_at_each_step_of_a_flush(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        steps = scenario.random.sample(STEPS, 3 if is_short(seed) else len(STEPS))
        long_dead = scenario.random.choice(steps)
        for step in steps:
            victim, other = _shuffled(scenario)
            log = Log(victim)
            _arm(victim, f"{step}:kill:{scenario.random.randint(3, 40)}")
            scenario.await_killed(victim)
            log.must_tell("failpoint reached", step)
            victim.change(failpoint=None)
            if step == long_dead:
                _await_takeover(scenario, other)
            victim.spawn()
        scenario.load_for(SOME)


@pytest.mark.long
def test_killed_at_random(pair: Stack, seed: int) -> None:
    """Ten kills: six times one of the two workers, twice both."""
    with Scenario(pair, seed, least_commands=50_000, per_s=1_000) as scenario:
        for count in scenario.random.sample([1] * 6 + [2] * 2, 8):
            scenario.load_for(scenario.random.randint(1, SOME))
            victims = _shuffled(scenario)[:count]
            for victim in victims:
                scenario.kill(victim)
            if count == 1 and scenario.random.random() < 0.5:
                scenario.load_for(1)
            for victim in victims:
                victim.spawn()
            for victim in victims:
                victim.await_ready()
        scenario.load_for(SOME)


@pytest.mark.long  # in short, one is frozen inside a flush until its successor has done everything
def test_frozen_past_the_session_and_back(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        victim, other = _shuffled(scenario)
        scenario.load_for(SOME)
        scenario.freeze(victim)
        _await_takeover(scenario, other)
        scenario.load_for(SOME)
        victim.resume()
        _await_return(scenario, victim, other)
        scenario.load_for(SOME)


@pytest.mark.long  # in short, the simulation, and a kill at each of these steps
@pytest.mark.parametrize(
    "step",
    [
        "before_produce",  # only the check of the generation stops it
        *(pytest.param(step, marks=pytest.mark.long) for step in ("before_offsets", "after_offsets", "after_commit")),
    ],
)
def test_superseded_inside_a_flush(pair: Stack, seed: int, step: str) -> None:
    """The zombie resumes after the new owner of its partitions has decided everything and the load is over."""
    with Scenario(pair, seed) as scenario:
        victim, other = _shuffled(scenario)
        log = Log(victim)
        _arm(victim, f"{step}:stop:{scenario.random.randint(20, 60)}")
        scenario.await_frozen(victim)
        log.must_tell("failpoint reached", step)
        _await_takeover(scenario, other)
        scenario.await_enough()
        scenario.end_load()
        scenario.await_decided()
        victim.resume()
        _await_return(scenario, victim, other)
    if step != "after_commit":
        observe(lambda: log.tells("batch not committed"), "the batch was refused")


@pytest.mark.long  # in short, the simulation
def test_first_batches_get_lost(pair: Stack, seed: int) -> None:
    """They are fetched and dropped on every assignment: batches of commands, and of the changelog of a new store."""
    with Scenario(pair, seed) as scenario:
        scenario.load_for(SOME)
        victim, other = _shuffled(scenario)
        log = Log(victim)
        victim.stop()
        shutil.rmtree(pair.settings.data_dir / victim.name)
        _replace(victim, broken.command(broken.drops_first_batches))
        for topic in (CHANGELOG, COMMANDS.name):
            observe(
                partial(log.tells, "a fetched batch was dropped, read again", topic),
                f"a dropped batch of {topic} was noticed",
            )
        scenario.load_for(SOME)
        other.stop()
        observe(lambda: scenario.owned(victim) == EVERYTHING, f"{victim.name} owns everything")
        scenario.load_for(SOME)
        other.start()


@pytest.mark.long  # in short, the simulation
def test_a_partition_stands_still(pair: Stack, seed: int) -> None:
    """Its commands keep arriving but are no longer fetched: the worker ends itself, and says why."""
    with Scenario(pair, seed) as scenario:
        victim, other = _shuffled(scenario)
        other.stop()
        log = Log(victim)
        _replace(victim, broken.command(broken.reads_no_commands_of_partition_0))
        observe(lambda: not runs(victim), "the worker ends")
        log.must_tell(
            "the worker stops: it makes no progress",
            f"{COMMANDS.name}/0 has stayed at offset",
            "fix: start the worker again",
        )
        assert victim.exit_code != 0
        _replace(victim, accounts_command())
        other.start()
        scenario.load_for(SOME)


@pytest.mark.long
def test_its_disk_is_full(pair: Stack, seed: int) -> None:
    """The worker ends itself; with room again it restores what it could not write."""
    with Scenario(pair, seed) as scenario:
        victim, _ = _shuffled(scenario)
        log = Log(victim)
        victim.stop()
        victim.command = broken.command(broken.fills_its_disk)
        victim.spawn()
        observe(lambda: not runs(victim), "the worker ends")
        log.must_tell("File too large")
        assert victim.exit_code != 0
        _replace(victim, accounts_command())
        scenario.load_for(SOME)


@pytest.mark.long
def test_the_changelog_is_compacted_during_a_restore(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario, scenario.compaction():
        scenario.load_for(4 * SOME)
        observe(scenario.compacted, "records are gone")
        for _ in range(3):
            _compact_while_it_restores(scenario, *_shuffled(scenario))
            scenario.load_for(SOME)


@pytest.mark.long  # in short, the simulation
def test_batches_are_aborted(pair: Stack, seed: int) -> None:
    """One in ten of a worker's, while it stays a member of its group: it recovers by itself."""
    with Scenario(pair, seed) as scenario:
        victim, _ = _shuffled(scenario)
        log = Log(victim)
        if victim.command == accounts_command():
            _replace(victim, broken.command(broken.aborts_every_tenth_batch))
        observe(lambda: log.count("batch not committed", "injected") >= 5, "batches are aborted")
        scenario.load_for(SOME)


@pytest.mark.long
def test_scaled_to_three_and_back_to_one(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        one, two = scenario.workers[:2]
        _stop(two)
        scenario.load_for(SOME)
        two.spawn()
        three = scenario.workers[2] if len(scenario.workers) > 2 else pair.add_worker(TOPOLOGY.service)
        if not runs(three):
            three.start()
        for worker in (one, two, three):
            observe(partial(scenario.owned, worker), f"{worker.name} owns partitions")
        scenario.load_for(SOME)
        for worker in scenario.random.sample([one, two, three], 3)[1:]:
            _stop(worker)
        (last,) = scenario.running()
        observe(lambda: scenario.owned(last) == EVERYTHING, "one worker owns everything")
        scenario.load_for(SOME)


@pytest.mark.long
def test_restarted_one_after_the_other(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        for _ in range(2):
            for worker in scenario.workers[:2]:
                scenario.load_for(SOME // 2)
                _stop(worker)
                worker.start()
        scenario.load_for(SOME // 2)


@pytest.mark.long  # in short, the proof of random histories, and the simulation
def test_robbed_of_their_stores(pair: Stack, seed: int) -> None:
    """Files get flipped bytes that are read only for a row; in the long tier, those that are read on opening, too."""
    on_opening = [] if is_short(seed) else [_scramble_the_manifests, _remove_the_currents]
    with Scenario(pair, seed) as scenario:
        for damage in (*on_opening, _flip_in_the_rows):
            victim, _ = _shuffled(scenario)
            scenario.load_for(SOME)
            victim.stop()
            log = Log(victim)
            damage(pair.settings.data_dir / victim.name, scenario.random)
            victim.start()
            observe(partial(log.tells, "wiped"), f"a store was wiped after {damage.__name__}")
        scenario.load_for(SOME)


def _shuffled(scenario: Scenario) -> list[Worker]:
    return scenario.random.sample(scenario.workers[:2], 2)


def _stop(worker: Worker) -> None:
    assert worker.stop(DEADLINE_S), f"{worker.name} did not end by SIGTERM"


def _replace(worker: Worker, command: Sequence[str]) -> None:
    worker.stop()
    worker.command = command
    worker.spawn()


def _arm(worker: Worker, failpoint: str) -> None:
    worker.kill()
    worker.change(failpoint=failpoint)
    worker.spawn()


def _await_takeover(scenario: Scenario, worker: Worker) -> None:
    """Waits until `worker` owns everything and has committed since, but no longer than is promised."""
    deadline = Deadline(TAKEN_OVER_S)
    await_in_time(lambda: scenario.owned(worker) == EVERYTHING, f"{worker.name} owns everything", TAKEN_OVER_S)
    commits = scenario.cluster(worker)["commits"]
    await_in_time(lambda: scenario.cluster(worker)["commits"] > commits + 3, f"{worker.name} commits", deadline.left_s)


def _await_return(scenario: Scenario, worker: Worker, other: Worker) -> None:
    """Asks the other worker: a frozen one knows nothing newer than its last assignment."""
    observe(lambda: scenario.owned(worker, other), f"{worker.name} owns partitions again")


def _compact_while_it_restores(scenario: Scenario, victim: Worker, other: Worker) -> None:
    """It is frozen until records of the partitions that it restores are gone."""
    scenario.freeze_while_it_restores(victim)
    _await_return(scenario, victim, other)
    restored = scenario.owned(victim, other)
    gone = scenario.compacted(restored)
    observe(lambda: scenario.compacted(restored) > gone, f"records of {sorted(restored)} are gone meanwhile")
    victim.resume()
    victim.await_ready()


def _tables(stores: Path) -> list[Path]:
    return sorted(folder for folder in stores.glob(f"{ACCOUNTS.name}-*") if folder.is_dir())


def _scramble_the_manifests(stores: Path, _: random.Random) -> None:
    for folder in _tables(stores):
        for manifest in folder.glob("MANIFEST-*"):
            manifest.write_bytes(bytes(byte ^ 0xFF for byte in manifest.read_bytes()))


def _remove_the_currents(stores: Path, _: random.Random) -> None:
    for folder in _tables(stores):
        (folder / "CURRENT").unlink()


def _flip_in_the_rows(stores: Path, chance: random.Random) -> None:
    """Spares the ends of the files, where their indexes are."""
    for folder in _tables(stores):
        for table in folder.glob("*.sst"):
            data = bytearray(table.read_bytes())
            for at in range(0, len(data) // 2, 512):
                data[at + chance.randrange(min(512, len(data) - at))] ^= 0xFF
            table.write_bytes(data)
