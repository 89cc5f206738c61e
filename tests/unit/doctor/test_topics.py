"""What can be lost is told with its loss, and mended by one command."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from shared.doctor.examine import examine
from shared.doctor.finding import Severity
from shared.doctor.snapshot import Snapshot
from shared.kafka.brokers import Bounds
from shared.operations.provision import Copies, Placement, TopicSpec, declared_topics
from shared.runtime.positions import Place
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.unit.doctor.healthy import BROKERS, GROUP, HEALTHY, NOW, SEEN, changed, only

CHANGELOG = "accounts-accounts-changelog"
PLACE = Place(EVENTS.name, 3)


def test_a_healthy_system_has_no_findings_also_where_no_worker_is_known() -> None:
    assert examine(HEALTHY) == []
    assert examine(SEEN) == []


@pytest.mark.parametrize(
    ("topic", "setting", "found", "severity", "why"),
    [
        (EVENTS.name, "min_insync_replicas", "1", Severity.URGENT, "may have 1 copies in all: losing those"),
        (EVENTS.name, "min_insync_replicas", "3", Severity.WARNING, "writes stop as soon as fewer than 3"),
        (EVENTS.name, "unclean_leader_election_enable", "true", Severity.URGENT, "answered writes .* are lost"),
        (EVENTS.name, "cleanup_policy", "compact", Severity.URGENT, "all records but the last"),
        (CHANGELOG, "cleanup_policy", "delete", Severity.WARNING, "removed by age"),
        ("accounts-accounts-outcomes-changelog", "cleanup_policy", "compact", Severity.NOTICE, "kept for ever"),
        (EVENTS.name, "retention_ms", "60000", Severity.URGENT, "removed that still count"),
        ("accounts-accounts-outcomes-changelog", "retention_ms", "-1", Severity.NOTICE, "longer than anybody needs"),
        (EVENTS.name, "message_timestamp_type", "CreateTime", Severity.WARNING, "timers come early or late"),
        (EVENTS.name, "retention_bytes", "1000", Severity.URGENT, "whether they were read or not"),
    ],
)
def test_a_setting_that_differs_is_told_with_what_it_can_cost(
    topic: str, setting: str, found: str, severity: Severity, why: str
) -> None:
    name = setting.replace("_", ".")
    finding = only(changed(topic, **{setting: found}))
    declared = HEALTHY.declared[topic].config[name]
    listed = f"[{declared}]" if "," in declared else declared
    assert (finding.code, finding.severity) == ("topic.setting", severity)
    assert re.search(why, finding.why)
    assert finding.evidence == f"{name} is {found}, declared as {declared}"
    assert shlex.split(finding.cure) == [
        *("python3", "dev.py", "kafka", "configs", "--alter", "--topic", topic, "--add-config", f"{name}={listed}")
    ]


@pytest.mark.parametrize(
    ("copies", "in_sync", "cure"),
    [
        (1, (1,), "first give it its copies, then ask again"),
        (2, (1, 2), "first give it its copies, then ask again"),
        (3, (1,), "first give it its copies, then ask again"),  # they are on their way
        (3, (1, 2), "python3 dev.py kafka configs --alter"),
    ],
)
def test_more_copies_are_asked_for_only_once_there_are_as_many(
    copies: int, in_sync: tuple[int, ...], cure: str
) -> None:
    seen = changed(EVENTS.name, min_insync_replicas="1")
    placement = Placement(frozenset(BROKERS), {**seen.placement.copies, PLACE: Copies(BROKERS[:copies], in_sync)})
    found = {**seen.found, EVENTS.name: replace(seen.found[EVENTS.name], replication=copies)}
    findings = examine(replace(seen, placement=placement, found=found))
    assert [each.code for each in findings if each.severity == Severity.URGENT][-1] == "topic.setting"
    (setting,) = (each for each in findings if each.code == "topic.setting")
    assert setting.cure.startswith(cure)


def test_a_shell_without_the_settings_of_production_lowers_nothing() -> None:
    bare = HEALTHY.settings.model_copy(update={"replication": 1, "min_isr": 1})
    found = {name: replace(spec, partitions=TOPOLOGY.partitions) for name, spec in HEALTHY.found.items()}
    findings = examine(replace(HEALTHY, settings=bare, declared=declared_topics([TOPOLOGY], bare), found=found))
    assert {each.cure for each in findings} == {"export ONEFOLD_REPLICATION=3 ONEFOLD_MIN_ISR=2"}


def test_missing_topics_are_one_finding() -> None:
    found = {name: spec for name, spec in HEALTHY.found.items() if "-" in name}
    finding = only(replace(HEALTHY, found=found))
    assert (finding.what, finding.cure) == ("5 declared topics are missing", "python3 dev.py provision")


NINE = {**HEALTHY.found, EVENTS.name: replace(HEALTHY.found[EVENTS.name], partitions=9)}


@pytest.mark.parametrize(("end", "cure"), [(0, "--delete --topic accounts.events.v1 && "), (1, "restore it from a")])
def test_a_topic_with_another_number_of_partitions_is_made_again_only_if_it_is_empty(end: int, cure: str) -> None:
    bounds = {at: Bounds(0, end, end) if at.topic == EVENTS.name else each for at, each in HEALTHY.bounds.items()}
    bounds[Place(EVENTS.name, TOPOLOGY.partitions)] = Bounds(0, end, end)
    assert cure in only(replace(HEALTHY, found=NINE, bounds=bounds)).cure


def test_a_topic_whose_records_nobody_can_count_now_is_not_deleted() -> None:
    empty = {place: Bounds(0, 0, 0) if place.topic == EVENTS.name else each for place, each in HEALTHY.bounds.items()}
    none = {place: each for place, each in HEALTHY.bounds.items() if place.topic != EVENTS.name}
    for bounds in (empty, none):  # a leader is away, or all are
        finding = only(replace(HEALTHY, found=NINE, bounds=bounds))
        assert "--delete" not in finding.cure
        assert "it may have records" in finding.evidence


def test_missing_copies_are_placed_where_there_are_none() -> None:
    lone = {Place(EVENTS.name, number): Copies((2,), (2,)) for number in range(TOPOLOGY.partitions)}
    spec = HEALTHY.found[EVENTS.name]
    found = {**HEALTHY.found, EVENTS.name: TopicSpec(spec.partitions, 1, spec.config)}
    placement = Placement(HEALTHY.placement.brokers, {**HEALTHY.placement.copies, **lone})
    finding = only(replace(HEALTHY, found=found, placement=placement))
    assert finding.code == "topic.copies"
    echo, plan, pipe, *command = shlex.split(finding.cure)
    assert (echo, pipe, command[:4]) == ("echo", "|", ["python3", "dev.py", "kafka", "reassign-partitions"])
    moves = json.loads(plan)["partitions"]
    assert [each["partition"] for each in moves] == list(range(TOPOLOGY.partitions))
    assert all(each["replicas"][0] == 2 and sorted(each["replicas"]) == list(BROKERS) for each in moves)
    one = Placement(frozenset({2}), placement.copies)
    cures = {each.code: each.cure for each in examine(replace(HEALTHY, found=found, placement=one))}
    assert cures["topic.copies"] == "start 2 more brokers, then ask again"


def test_the_brokers_own_topics_count_too() -> None:
    """Without positions, a group of policies stops for good; without transactions' states, batches hang."""
    spec = TopicSpec(2, 1, {"min.insync.replicas": "1"})
    declared = TopicSpec(2, 3, {"min.insync.replicas": "2"})
    name = "__consumer_offsets"
    lone = {Place(name, number): Copies((1,), (1,)) for number in range(2)}
    seen = replace(
        HEALTHY,
        placement=Placement(HEALTHY.placement.brokers, {**HEALTHY.placement.copies, **lone}),
        declared={**HEALTHY.declared, name: declared},
        found={**HEALTHY.found, name: spec},
    )
    assert {each.code for each in examine(seen)} == {"topic.copies", "topic.setting"}


@pytest.mark.parametrize(
    ("in_sync", "brokers", "severity", "cure"),
    [
        ((1, 2), (1, 2), Severity.WARNING, "start broker 3"),
        ((1,), (1, 3), Severity.URGENT, "start broker 2"),
        ((3,), (1, 2), Severity.URGENT, "start broker 3"),
        ((1, 2), (1, 2, 3), Severity.WARNING, "look in the log of broker 3"),
    ],
)
def test_a_broker_without_its_copies_is_named(
    in_sync: tuple[int, ...], brokers: tuple[int, ...], severity: Severity, cure: str
) -> None:
    copies = {**HEALTHY.placement.copies, PLACE: Copies(BROKERS, in_sync)}
    findings = examine(replace(HEALTHY, placement=Placement(frozenset(brokers), copies)))
    assert {each.code for each in findings} == {"broker.behind"}
    assert [each.severity for each in findings if each.cure.startswith(cure)] == [severity]


def held(age_s: float, holder: str | None) -> Snapshot:
    """By a transaction of this age, and by a younger one elsewhere."""
    other = Place(COMMANDS.name, 0)
    bounds = {**HEALTHY.bounds, PLACE: Bounds(0, 4, 10), other: Bounds(0, 5, 10)}
    stamped = {(PLACE, 4): NOW - age_s, (other, 5): NOW - 1}
    return replace(HEALTHY, bounds=bounds, stamped=stamped, holder=holder)


@pytest.mark.parametrize(
    ("holder", "cure"),
    [
        ("else's", "python3 dev.py kafka transactions forceTerminateTransaction --transactionalId 'else'\"'\"'s'"),
        ("", "ask again in 8"),
        (None, "ask again where Java runs"),
    ],
)
def test_a_transaction_that_stays_open_is_ended_as_a_whole_if_anybody_knows_it(holder: str | None, cure: str) -> None:
    finding = only(held(7, holder))
    assert (finding.code, finding.severity) == ("transaction.open", Severity.WARNING)
    assert finding.cure.startswith(cure)
    assert finding.why.endswith("; 1 partitions are held back")
    assert only(held(40, holder)).severity == Severity.URGENT


def test_only_a_transaction_that_every_coordinator_would_have_ended_by_now_is_torn_apart() -> None:
    abort = "kafka transactions abort --topic accounts.events.v1 --partition 3 --start-offset 4"
    assert only(held(899, "")).cure == "ask again in 1 s: until then a coordinator that is away may still end it"
    assert only(held(901, "")).cure == f"python3 dev.py {abort}"


def test_a_worker_may_be_writing_just_now() -> None:
    assert examine(held(2, None)) == []


BRIEF = "accounts-accounts-outcomes-changelog"  # the one with a retention: 48 hours


@pytest.mark.parametrize(
    ("kept_h", "age_h", "codes"),
    [
        (48, 23, []),
        (48, 25, ["retention.unread"]),
        (192, 25, []),  # what the cure makes of it; not told to be longer than declared until all is read
        (192, 20, ["topic.setting"]),
        (192, 97, ["retention.unread"]),
    ],
)
def test_unread_records_are_kept_for_longer_before_retention_removes_them(
    kept_h: int, age_h: int, codes: list[str]
) -> None:
    seen = replace(
        changed(BRIEF, retention_ms=str(kept_h * 3_600_000)),
        positions={GROUP: {**HEALTHY.positions[GROUP], Place(BRIEF, 0): 3}},
        stamped={(Place(BRIEF, 0), 3): NOW - age_h * 3600},
    )
    findings = examine(seen)
    assert [each.code for each in findings] == codes
    if findings and codes == ["retention.unread"]:
        assert "7 records from offset 3 on" in findings[0].evidence
        assert findings[0].cure.endswith(f"retention.ms={4 * kept_h * 3_600_000}")


def test_records_that_nobody_handles_are_an_alarm() -> None:
    waiting = {GROUP: {**HEALTHY.positions[GROUP], Place(COMMANDS.name, 0): 8}}
    assert examine(replace(HEALTHY, positions=waiting)) == []
    finding = only(replace(SEEN, positions=waiting, members={GROUP: []}))
    assert (finding.code, finding.cure) == ("service.stands", "python3 dev.py worker accounts")
    assert examine(replace(SEEN, members={GROUP: []})) == []
