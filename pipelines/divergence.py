"""Where a row and its key's events diverge: the key's whole history, followed on the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from pipelines.catalog import FoldedTable
from pipelines.folds import Folded, advance_of
from pipelines.sources import RECORDS, Flow, of_keys


class Record(NamedTuple):
    """One record of a key, in the order of its topic."""

    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """One key whose row is not the fold of its events.

    live, folded: the two states as JSON. at: the event where they diverge, with its place.
    """

    key: str
    why: str
    live: str
    folded: str
    at: str

    def __str__(self) -> str:
        lines = (f"live    {self.live}", f"folded  {self.folded}", f"they part {self.at}")
        return "\n    ".join([f"{self.key}: {self.why}", *lines])


def canonical(value: Any) -> str:
    """JSON in which equal values are equal text, and 1, 1.0 and true differ, which are equal in Python."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def first_divergences(
    table: FoldedTable, events: Flow, changelog: Flow, reasons: Mapping[bytes, str]
) -> tuple[Divergence, ...]:
    """What happened to each key of `reasons`, from all records both topics still have of it."""
    of_events, of_rows = records_of(events, [*reasons]), records_of(changelog, [*reasons])
    return tuple(_locate(table, key, why, of_events.get(key, []), of_rows.get(key, [])) for key, why in reasons.items())


def _locate(table: FoldedTable, key: bytes, why: str, events: Sequence[Record], rows: Sequence[Record]) -> Divergence:
    """The first version of the row that is not the fold so far, and the event it should have come from."""
    story = _Story(table, key, events)
    versions = [_version(table, row) for row in rows]
    wrong = next((version for version in versions if not story.explains(version)), None)
    last = wrong or (versions[-1] if versions else None)
    return Divergence(
        key=key.decode(errors="replace"),
        why=why,
        live=last.text if last else "no row",
        folded=story.state_at(last.sequence if last else None),
        at=story.place(wrong, versions),
    )


class _Version(NamedTuple):
    """A row as the changelog has it; sequence -1 when it is deleted or cannot be read."""

    offset: int
    sequence: int
    state: Any
    text: str
    is_deleted: bool = False


class _Story:
    """A key's events, folded one by one."""

    def __init__(self, table: FoldedTable, key: bytes, events: Sequence[Record]) -> None:
        self._table = table
        self._states = [Folded(0, table.initial, -1)]
        self._taken: list[Record] = []
        self._broken: Record | None = None
        advance, folded = advance_of(table), self._states[0]
        for event in events:
            before = folded
            try:
                folded = advance(before, event.offset, key, event.value or b"")
            except Exception:
                self._broken = event
                break
            if folded is not before:
                self._states.append(folded)
                self._taken.append(event)

    def explains(self, version: _Version) -> bool:
        """Whether the row is a fold at its sequence, or was deleted as one that had ended."""
        if version.is_deleted:
            return bool(self._table.table.expires) or any(
                self._table.has_ended(to_json(each.state)) for each in self._states[1:]
            )
        folded = [each.state for each in self._states if each.sequence == version.sequence]
        return canonical(version.state) in (canonical(from_json(to_json(state))) for state in folded)

    def state_at(self, sequence: int | None) -> str:
        at = self._number_at(sequence) or len(self._states) - 1
        return f"{to_json(self._states[at].state).decode()} after event {at}"

    def _number_at(self, sequence: int | None) -> int | None:
        """How many events the last fold at that sequence has; None if there is none."""
        numbers = range(len(self._states) - 1, 0, -1)
        return next((number for number in numbers if self._states[number].sequence == sequence), None)

    def place(self, wrong: _Version | None, versions: Iterable[_Version]) -> str:
        if self._broken is not None:
            return f"at the event that cannot follow: {self._described(self._broken)}"
        if wrong is None:
            return "after the last row that the changelog still has"
        if (number := self._number_at(wrong.sequence)) is None:
            last = self._taken[-1] if self._taken else None
            return f"after the last event there is: {self._described(last)}" if last else "before any event"
        event = self._described(self._taken[number - 1])
        agreed = any(v.sequence == wrong.sequence for v in versions if v.offset < wrong.offset)
        row = f"{self._table.changelog}, offset {wrong.offset}"
        return f"after event {event}: the row was changed by no event ({row})" if agreed else f"at event {event}"

    def _described(self, event: Record) -> str:
        place = f"{self._table.events.name}, partition {event.partition}, offset {event.offset}"
        try:
            fields = from_json(event.value or b"")
            return f"{fields['sequence']}, {fields['type']} of {fields['occurred_at']} ({place})"
        except (ValueError, LookupError, TypeError):
            return f"that is not an event ({place})"


def _version(table: FoldedTable, row: Record) -> _Version:
    if row.value is None:
        return _Version(row.offset, -1, None, "deleted", is_deleted=True)
    try:
        live = table.row_codec.decode(row.value)
    except ValueError:
        return _Version(row.offset, -1, None, row.value.decode(errors="replace"))
    state = to_json(live.state)
    return _Version(row.offset, live.sequence, from_json(state), f"{state.decode()} at sequence {live.sequence}")


def records_of(records: Flow, keys: Sequence[bytes]) -> dict[bytes, list[Record]]:
    """All records of each key, in the order of their topic."""
    found: dict[bytes, list[Record]] = {}
    wanted = records.then(partial(of_keys, keys), RECORDS).frame
    for row in wanted.select("key", "partition", "offset", "value").orderBy("partition", "offset").collect():
        record = Record(row.partition, row.offset, None if row.value is None else bytes(row.value))
        found.setdefault(bytes(row.key), []).append(record)
    return found
