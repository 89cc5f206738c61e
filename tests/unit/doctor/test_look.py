"""The doctor looks twice before it calls a transaction open, and asks nobody who can't know whose it is."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shared.doctor import look as looking
from shared.doctor.look import look, read_on
from shared.doctor.snapshot import Snapshot
from shared.kafka.brokers import Bounds
from shared.operations.provision import Copies, Placement
from shared.runtime.positions import Place
from shared.runtime.routes import Role
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.unit.doctor.healthy import BROKERS, HEALTHY, PARTITIONS, SETTINGS

PLACE = Place(EVENTS.name, 3)
OPEN = Bounds(0, 4, 10)
EVERYWHERE = Copies(BROKERS, BROKERS)
COORDINATED = Place("__transaction_state", 0)


class Kafka:
    """What brokers answer: by look, the bounds at PLACE."""

    def __init__(self, *bounds: Bounds, coordinator: Copies = EVERYWHERE) -> None:
        self._bounds: Iterator[Bounds] = iter(bounds)
        copies = {**dict.fromkeys(PARTITIONS, EVERYWHERE), COORDINATED: coordinator}
        self.placement = Placement(frozenset(BROKERS), copies)

    def bounds(self, partitions: Collection[Place]) -> dict[Place, Bounds]:
        return {**dict.fromkeys(partitions, Bounds(0, 10, 10)), PLACE: next(self._bounds)}

    def members(self, group: str) -> Sequence[str]:
        return [f"1 of {group}"]

    def positions(self, group: str) -> Mapping[str, Mapping[int, int]]:
        return {}


def seen_of(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, *, age_s: float = 60, version: int = 1) -> Snapshot:
    """Each record looks this old, by when it came or by a clock that is ahead."""

    def stamps(_: str, offsets: Iterable[tuple[Place, int]]) -> dict[tuple[Place, int], float]:
        return dict.fromkeys(offsets, time.time() - age_s)

    def tool_table(_: str, arguments: Sequence[str], __: str) -> list[dict[str, Any]]:
        assert arguments == ["list"] or "describe-producers" in arguments
        return [] if arguments == ["list"] else [{"CurrentTransactionStartOffset": "4", "ProducerId": "7"}]

    answers = {
        "placed": lambda _: kafka.placement,
        "found_topics": lambda *_: HEALTHY.found,
        "Brokers": lambda _: kafka,
        "stamps": stamps,
        "tool_table": tool_table,
        "_PACE_S": 0.0,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(looking, name, answer)
    return look([replace(TOPOLOGY, version=version)], SETTINGS, {})


def test_a_transaction_is_open_if_it_is_so_at_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_of(Kafka(OPEN, OPEN), monkeypatch).longest_open() == (PLACE, 4)


@pytest.mark.parametrize("later", [Bounds(0, 10, 10), Bounds(0, 7, 12), Bounds(0, 12, 12)])
def test_transactions_that_end_meanwhile_are_not_old_by_a_wrong_clock(
    later: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_of(Kafka(OPEN, later), monkeypatch).longest_open() is None


def test_young_ones_need_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_of(Kafka(OPEN), monkeypatch, age_s=1).longest_open() is None


@pytest.mark.parametrize(
    ("coordinator", "holder"),
    [(EVERYWHERE, ""), (Copies(BROKERS, (4,)), None), (Copies(BROKERS, ()), None)],
)
def test_a_transaction_is_nobodys_only_if_every_coordinator_can_answer(
    coordinator: Copies, holder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_of(Kafka(OPEN, OPEN, coordinator=coordinator), monkeypatch).holder == holder


def test_members_of_former_versions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_of(Kafka(OPEN), monkeypatch, age_s=0, version=4)
    assert seen.members.keys() == {"accounts-v4", "accounts", "accounts-v2"}


def test_what_another_version_handles_does_not_wait() -> None:
    turns = {0: Role(1, acts=False).committed, 1: Role(2, acts=True).committed}
    positions = {TOPOLOGY.routes.name: turns, COMMANDS.name: {0: 3, 1: 4, 2: 5}, EVENTS.name: {0: 6, 1: 7}}
    assert read_on(TOPOLOGY, positions) == {COMMANDS.name: {1: 4, 2: 5}, EVENTS.name: {0: 6, 1: 7}}
