"""Checks of topics: what their settings allow to be lost, where their copies are, and what holds their readers back."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterator
from math import inf

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Snapshot
from shared.operations.provision import Difference, differences, setting_command
from shared.runtime.positions import Place
from shared.topology.topics import KEPT_FOR_EVER

HELD_S = 30.0  # twice the time after which brokers abort a worker's transaction
_HANGING_S = 900.0  # brokers take no transaction's time-out that is longer (transaction.max.timeout.ms)
_DUE = 0.5  # of a topic's retention: a record that has gone unread for so long is in danger
_LONGER = 4  # times the retention, while records are in danger


def check_missing(seen: Snapshot) -> Iterator[Finding]:
    if missing := [each.topic for each in _differences(seen, "topic")]:
        yield Finding(
            Severity.URGENT,
            "topic.missing",
            f"{len(missing)} declared topics are missing",
            ", ".join(missing),
            "a worker that reads or writes them does not start; if one was deleted, its records are gone",
            dev("provision"),
        )


def check_settings(seen: Snapshot) -> Iterator[Finding]:
    for each in differences(seen.declared, seen.found):
        if each.setting in ("topic", "partitions", "replication") or _is_respite(each, seen):
            continue
        severity, why = harm_of(each)
        yield Finding(
            severity,
            "topic.setting",
            f"{each.topic} is not as declared",
            f"{each.setting} is {each.found}, declared as {each.declared}",
            why,
            _durable(each, seen) or f"{dev('kafka')} {setting_command(each.topic, each.setting, each.declared)}",
        )


def _durable(difference: Difference, seen: Snapshot) -> str:
    """What comes before the declared min.insync.replicas, or instead of it, so that writes go on and stay safe.

    A topic that is safer than declared is so as production declares it, and this shell lacks its settings.
    """
    if difference.setting != "min.insync.replicas":
        return ""
    topic, found, declared = difference.topic, int(difference.found), int(difference.declared)
    copies = seen.found[topic].replication
    if found < declared and (copies < seen.declared[topic].replication or seen.in_sync(topic) < declared):
        return "first give it its copies, then ask again: without them, the declared setting stops writes"
    if declared < found < copies or declared == 1 < copies:
        return f"export ONEFOLD_REPLICATION={copies} ONEFOLD_MIN_ISR={found}"
    return ""


def harm_of(difference: Difference) -> tuple[Severity, str]:
    """What can be lost, or goes wrong, while a setting differs from its declaration."""
    declared, found = difference.declared, difference.found
    match difference.setting:
        case "min.insync.replicas" if int(found) < int(declared):
            return Severity.URGENT, f"an answered write may have {found} copies in all: losing those loses it"
        case "min.insync.replicas":
            return Severity.WARNING, f"writes stop as soon as fewer than {found} copies are in sync"
        case "unclean.leader.election.enable":
            return Severity.URGENT, "a copy that lags may become the leader: answered writes that it lacks are lost"
        case "cleanup.policy" if declared == "delete":
            return (
                Severity.URGENT,
                "of each key all records but the last are removed: no fold of the log is right again",
            )
        case "cleanup.policy" if found == "compact":
            return Severity.NOTICE, "what no longer counts is kept for ever"
        case "cleanup.policy":
            return Severity.WARNING, "superseded rows stay, or rows that still count may be removed by age"
        case "retention.ms" if _kept_ms(found) > _kept_ms(declared):
            return Severity.NOTICE, "records are kept for longer than anybody needs them"
        case "retention.ms":
            return Severity.URGENT, "records are removed that still count: nothing can be computed from them again"
        case "retention.bytes":
            return Severity.URGENT, "as the topic grows, its oldest records are removed, whether they were read or not"
        case "delete.retention.ms" if int(found) < int(declared):
            return (
                Severity.URGENT,
                "a worker that was away for longer has rows again that had ended, and goes on from them",
            )
        case "segment.bytes" | "min.cleanable.dirty.ratio" | "delete.retention.ms":
            return Severity.NOTICE, "rows that have ended stay in their changelog, and are restored, for longer"
        case _:
            return Severity.WARNING, "writers' clocks say how old records are, so timers come early or late"


def check_partitions(seen: Snapshot) -> Iterator[Finding]:
    for each in _differences(seen, "partitions"):
        known = [bounds for (topic, _), bounds in seen.bounds.items() if topic == each.topic]
        empty = len(known) == int(each.found) and all(start == end for start, _, end in known)
        again = f"{dev('kafka', 'topics', '--delete', '--topic', each.topic)} && {dev('provision')}"
        yield Finding(
            Severity.URGENT,
            "topic.partitions",
            f"{each.topic} has another number of partitions than declared",
            f"it has {each.found}, declared as {each.declared}; {'it is empty' if empty else 'it may have records'}",
            "keys are in other partitions than workers look for, so workers refuse to start, and running ones stop",
            again if empty else each.fix,
        )


def check_copies(seen: Snapshot) -> Iterator[Finding]:
    """Topics with fewer copies than declared, and brokers that lack copies of theirs."""
    for each in _differences(seen, "replication"):
        if int(each.found) < int(each.declared):
            yield Finding(
                Severity.URGENT,
                "topic.copies",
                f"{each.topic} has fewer copies than declared",
                f"{each.found}, declared as {each.declared}",
                f"the loss of {each.found} brokers loses it",
                _reassigned(each.topic, int(each.declared), seen),
            )
    yield from _behind(seen)


def _behind(seen: Snapshot) -> Iterator[Finding]:
    lacking: dict[int, list[str]] = defaultdict(list)
    refused: dict[int, list[str]] = defaultdict(list)
    for place, copies in seen.placement.copies.items():
        if place.topic in seen.found:
            needed = int(seen.found[place.topic].config["min.insync.replicas"])
            in_sync = set(copies.in_sync) & seen.placement.brokers  # the last copy counts as in sync for ever
            for broker in set(copies.replicas) - in_sync:
                (refused if len(in_sync) < needed else lacking)[broker].append(str(place))
    for broker in sorted(lacking.keys() | refused.keys()):
        runs = broker in seen.placement.brokers
        yield Finding(
            Severity.URGENT if refused[broker] else Severity.WARNING,
            "broker.behind",
            f"broker {broker} {'does not keep up' if runs else 'is not there'}",
            f"its copies are out of sync: {_some(refused[broker] + lacking[broker])}",
            f"writes are refused in {len(refused[broker])} of these partitions, and what only the others have is lost "
            f"with them",
            f"look in the log of broker {broker} for why it does not follow" if runs else f"start broker {broker}",
        )


def check_transactions(seen: Snapshot) -> Iterator[Finding]:
    """The one that has been open for longest: it may hold back many partitions, and others are seen after it."""
    begun = seen.longest_open()
    if begun is not None:
        (place, offset), age_s = begun, seen.age_s(*begun) or 0.0
        whose = f"; its transactional id is {seen.holder}" if seen.holder else ""
        yield Finding(
            Severity.URGENT if age_s >= HELD_S else Severity.WARNING,
            "transaction.open",
            f"a transaction in {place} stays open",
            f"it began at offset {offset}, {age_s:,.0f} s ago{whose}",
            f"no reader of committed records gets past it; {len(seen.long_open())} partitions are held back",
            _ended(place, offset, age_s, seen.holder),
        )


def _ended(place: Place, offset: int, age_s: float, holder: str | None) -> str:
    """Through its coordinator, as long as that knows of it: an abort in one partition alone would tear it apart."""
    if holder is None:
        return "ask again where Java runs: only Kafka's own tool knows whose it is"
    if holder:
        return dev("kafka", "transactions", "forceTerminateTransaction", "--transactionalId", holder)
    if age_s < _HANGING_S:
        return f"ask again in {_HANGING_S - age_s:,.0f} s: until then a coordinator that is away may still end it"
    where = ("--topic", place.topic, "--partition", str(place.number), "--start-offset", str(offset))
    return dev("kafka", "transactions", "abort", *where)


def check_retention(seen: Snapshot) -> Iterator[Finding]:
    for unread in seen.unread():
        kept_s, age_s = _kept_s(unread.place.topic, seen), seen.age_s(unread.place, unread.first)
        if age_s is not None and age_s > _DUE * kept_s:
            longer = setting_command(unread.place.topic, "retention.ms", f"{_LONGER * kept_s * 1000:.0f}")
            yield Finding(
                Severity.URGENT,
                "retention.unread",
                f"retention is about to remove what {unread.group} has not read of {unread.place}",
                f"{unread.records:,} records from offset {unread.first} on; the first came {age_s:,.0f} s ago and is "
                f"kept for {kept_s:,.0f} s, so it is removed in {max(0.0, kept_s - age_s):,.0f} s",
                "what is removed unread is lost, and the workers stop there; longer retention only gives them time",
                f"{dev('kafka')} {longer}",
            )


def _differences(seen: Snapshot, setting: str) -> list[Difference]:
    return [each for each in differences(seen.declared, seen.found) if each.setting == setting]


def _is_respite(difference: Difference, seen: Snapshot) -> bool:
    """Whether records are kept for longer because some are still unread that would be gone."""
    if difference.setting != "retention.ms" or _kept_ms(difference.found) < _kept_ms(difference.declared):
        return False
    unread = (each for each in seen.unread() if each.place.topic == difference.topic)
    ages_s = [seen.age_s(each.place, each.first) or 0.0 for each in unread]
    return max(ages_s, default=0.0) > _DUE * _kept_ms(difference.declared) / 1000


def _kept_s(topic: str, seen: Snapshot) -> float:
    return _kept_ms(seen.found[topic].config["retention.ms"]) / 1000 if topic in seen.found else inf


def _kept_ms(setting: str) -> float:
    return inf if int(setting) == KEPT_FOR_EVER else int(setting)


def _reassigned(topic: str, wanted: int, seen: Snapshot) -> str:
    """Kafka's tool with new copies on brokers that have none yet, from another one on for each partition."""
    brokers = sorted(seen.placement.brokers)
    if len(brokers) < wanted:
        return f"start {wanted - len(brokers)} more brokers, then ask again"
    partitions = []
    for place, copies in sorted(seen.placement.copies.items()):
        if place.topic == topic:
            turned = brokers[place.number % len(brokers) :] + brokers[: place.number % len(brokers)]
            kept = [each for each in copies.replicas if each in brokers]
            replicas = [*kept, *(each for each in turned if each not in kept)][:wanted]
            partitions.append({"topic": topic, "partition": place.number, "replicas": replicas})
    plan = shlex.quote(json.dumps({"version": 1, "partitions": partitions}))
    tool = dev("kafka", "reassign-partitions", "--execute", "--reassignment-json-file", "/dev/stdin")
    return f"echo {plan} | {tool}"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3:,} more" if len(names) > 3 else shown
