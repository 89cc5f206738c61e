"""What the log has to hold, given the commands; each function yields the violations it finds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.domain.history_index import EVENTS_PER_ENTRY
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import page_id
from shared.runtime.positions import Place
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from tests.faults.load import Answered, Sent
from tests.faults.log import Read, Records
from tests.faults.truth import (
    NO_LIMITS,
    TOO_LARGE,
    Limits,
    RowFacts,
    Truth,
    fact_of,
    facts_of,
    outcome_of,
    states_after,
)

CHANGELOG = TOPOLOGY.changelog(ACCOUNTS).name
PARKED = TOPOLOGY.changelog(TOPOLOGY.parked).name
OUTCOMES = next(TOPOLOGY.changelog(table).name for table in TOPOLOGY.all_tables() if table == TOPOLOGY.outcomes)
OUTPUTS = (EVENTS.name, CHANGELOG, OUTCOMES, PARKED, TOPOLOGY.dead_letters.name)
HISTORY_INDEX = next(
    TOPOLOGY.changelog(table).name for table in TOPOLOGY.all_tables() if table == TOPOLOGY.history_index
)


def truth_of(inputs: Records, limits: Limits = NO_LIMITS) -> Truth:
    truth = Truth(limits)
    for (_, partition), records in inputs.items():
        for record in records:
            truth.feed(partition, record)
    return truth


def wrong_log(truth: Truth, outputs: Records, partitions: int = TOPOLOGY.partitions) -> Iterator[str]:
    """outputs: every committed record of OUTPUTS."""
    yield from _wrong_events(truth, outputs, partitions)
    yield from _wrong_changes(truth, outputs)
    yield from _wrong_outcomes(truth, outputs)
    yield from _wrong_letters(truth, outputs)
    yield from _wrong_parked(truth, outputs)


def wrong_entries(truth: Truth, outputs: Records) -> Iterator[str]:
    """Each entry of the index has to name the next events of its account and the states around them; in the end all."""
    offsets: dict[str, list[int]] = {}
    for _, record in _records(outputs, EVENTS.name):
        offsets.setdefault((record.key or b"").decode(), []).append(record.offset)
    states = {name: states_after(account.facts) for name, account in truth.accounts.items()}
    named: dict[tuple[str, int], int] = {}  # the last event, by account and first event
    for _, record in _records(outputs, HISTORY_INDEX):
        name, _, number = (record.key or b"").decode().rpartition(" ")
        row, first = json.loads(record.value or b""), int(number) * EVENTS_PER_ENTRY
        before, last = named.get((name, first), first), row["sequence"]
        around = [state for at in (first, last) for state in states.get(name, [])[at : at + 1]]
        is_next = before < last <= first + EVENTS_PER_ENTRY
        if not is_next or _entry(row) != (first + 1, offsets.get(name, [])[first:last], around):
            yield f"index entry of {name} after event {before}: {row}"
        named[name, first] = last
    yield from _unnamed(truth, named)


def lost(acknowledged: Sequence[Sent], inputs: Records) -> Iterator[str]:
    """Acknowledged records that are not where the broker said, or not in their partition where it did not say."""
    there = {
        Sent(topic, partition, offset, record.key, record.value)
        for (topic, partition), records in inputs.items()
        for record in records
        for offset in (record.offset, None)
    }
    for sent in acknowledged:
        if sent not in there:
            yield f"acknowledged and lost: {sent}"


def uncompacted(followed: Records, outputs: Records) -> Records:
    """The outputs, with the changelog as the follower read it, if compaction removed nothing but older rows."""
    whole = dict(outputs)
    for place in (place for place in outputs if place.topic == CHANGELOG):
        then, now = followed[place], set(outputs[place])
        if now.issubset(then) and now.issuperset({read.key: read for read in then}.values()):
            whole[place] = then
    return whole


def changed_since(followed: Records, outputs: Records) -> Iterator[str]:
    """Differences between what was read during the faults and what is there now."""
    for place, now in outputs.items():
        then = followed[place]
        if then != now:
            at = next((n for n, (one, other) in enumerate(zip(then, now, strict=False)) if one != other), None)
            yield f"{place}: {len(then)} records seen before, {len(now)} now, first difference at {at}"


def wrong_answers(truth: Truth, answers: Sequence[Answered]) -> Iterator[str]:
    """Every answer over HTTP has to be what was decided."""
    for answer in answers:
        outcome = truth.outcomes.get((answer.name, answer.command_id))
        told = (answer.code, answer.sequence if answer.code is None else None)
        decided = outcome and (outcome.code, outcome.sequence if outcome.code is None else None)
        if told != decided:
            yield f"answered {answer}, decided {outcome}"


def last(rows: Mapping[int, RowFacts]) -> RowFacts:
    return rows[max(rows)]


def _wrong_events(truth: Truth, outputs: Records, partitions: int) -> Iterator[str]:
    """Each account's events have to be its facts: once each, in order, without a gap, in the partition of its key."""
    found: dict[str, list[Any]] = {}
    for (_, partition), record in _records(outputs, EVENTS.name):
        name = (record.key or b"").decode()
        found.setdefault(name, []).append(fact_of(record.value or b""))
        if partition != partition_of(record.key or b"", partitions):
            yield f"event of {name} in partition {partition}"
    for name in found.keys() | truth.accounts.keys():
        facts = truth.accounts[name].facts if name in truth.accounts else []
        if found.get(name, []) != facts:
            yield f"events of {name}: {first_difference(found.get(name, []), facts)}"


def _wrong_changes(truth: Truth, outputs: Records) -> Iterator[str]:
    """Each change has to be the account's row after some command, later ones after later commands, up to the last."""
    latest: dict[str, int] = {}
    for _, record in _records(outputs, CHANGELOG):
        name, row = (record.key or b"").decode(), facts_of(record.value or b"")
        if truth.rows.get(name, {}).get(row.offset) != row:
            yield f"change of {name}: {row} instead of {truth.rows.get(name, {}).get(row.offset)}"
        if latest.get(name, -1) >= row.offset:
            yield f"change of {name}: {row.offset} after {latest[name]}"
        latest[name] = row.offset
    for name, rows in truth.rows.items():
        if latest.get(name) != max(rows):
            yield f"the last change of {name} is {latest.get(name)} instead of {max(rows)}"


def _wrong_outcomes(truth: Truth, outputs: Records) -> Iterator[str]:
    """Each command has to have its outcome, written once when it is decided, or for the last time in a batch."""
    found: dict[tuple[str, str], list[Any]] = {}
    for _, record in _records(outputs, OUTCOMES):
        place, outcome = outcome_of(record.key or b"", record.value or b"")
        found.setdefault(place, []).append(outcome)
    for place in found.keys() | truth.decided.keys():
        told, decided = found.get(place, []), truth.decided.get(place, [])
        rest = iter(decided)
        if told[-1:] != decided[-1:] or not all(outcome in rest for outcome in told):
            yield f"outcomes of {place}: {told} instead of {decided}"


def _unnamed(truth: Truth, named: Mapping[tuple[str, int], int]) -> Iterator[str]:
    counts = Counter[str]()
    for (name, first), last in named.items():
        counts[name] += last - first
    for name, account in truth.accounts.items():
        if counts[name] != len(account.facts):
            yield f"index entries of {name} have {counts[name]} of {len(account.facts)} events"


def _entry(row: Mapping[str, Any]) -> tuple[int, list[int], list[tuple[str, int] | None]]:
    """Its first event, the offsets, and the states around; None for one that is unknown."""
    state = row["state"]
    around = [each and (each["phase"], each.get("balance_cents", 0)) for each in (state["before"], state["after"])]
    return state["first"], state["offsets"], around


def _wrong_letters(truth: Truth, outputs: Records) -> Iterator[str]:
    letters = [json.loads(record.value or b"") for _, record in _records(outputs, TOPOLOGY.dead_letters.name)]
    places = [(letter["partition"], letter["offset"]) for letter in letters]
    for place in set(places):
        if places.count(place) > 1:
            yield f"{places.count(place)} dead letters for {place}"
    expected = truth.dead | truth.reused
    for place in set(places) ^ expected:
        yield f"dead letter {'missing' if place in expected else 'for a good command'}: {place}"
    for letter in letters:
        codes = _codes(truth, (letter["partition"], letter["offset"]))
        if letter["topic"] != COMMANDS.name or letter["code"] not in codes or not letter["reason"]:
            yield f"dead letter: {letter}"


def _codes(truth: Truth, place: tuple[int, int]) -> Sequence[str]:
    """What the dead letter of this command may say."""
    if place in truth.reused:
        return ["command.id_reused"]
    return [TOO_LARGE] if place in truth.too_large else ["message.bad", "message.unknown"]


def _wrong_parked(truth: Truth, outputs: Records) -> Iterator[str]:
    """The parked records have to be the bad ones and, behind those that keep their place, later ones of their keys."""
    states: dict[str, Any] = {}
    for _, record in _records(outputs, PARKED):
        states[(record.key or b"").decode()] = record.value and json.loads(record.value)["state"]
    listed = {id_: state for id_, state in states.items() if state and not id_.startswith("\x02")}
    found = sorted((state["partition"], list(_offsets(id_, states))) for id_, state in listed.items())
    keyed = [(partition, offsets) for (partition, _), offsets in truth.parked.items()]
    keyless = [(partition, [offset]) for partition, offset in truth.dead - _heads(truth)]
    if found != sorted(keyed + keyless):
        yield f"parked: {first_difference(found, sorted(keyed + keyless))}"


def _offsets(id_: str, states: Mapping[str, Any]) -> Iterator[int]:
    """All that is parked under the id, page by page."""
    for page in (states[id_], *(states[page_id(id_, first)] for first in states[id_]["pages"])):
        yield from (page["offset"], *page["behind"])


def _heads(truth: Truth) -> set[tuple[int, int]]:
    return {(partition, offsets[0]) for (partition, _), offsets in truth.parked.items()}


def _records(outputs: Records, topic: str) -> Iterator[tuple[Place, Read]]:
    return ((place, record) for place, records in outputs.items() if place.topic == topic for record in records)


def first_difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    pairs = enumerate(zip(found, expected, strict=False))
    at = next((number for number, (one, other) in pairs if one != other), min(len(found), len(expected)))
    return f"{len(found)} instead of {len(expected)}, {found[at : at + 2]} instead of {expected[at : at + 2]}"
