"""What a service serves besides rows, compared with the log: histories, past states, outcomes and lists."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json, to_json

from pipelines.answers import Worker, at_once, differ, worker_at
from pipelines.answers import difference as row_difference
from pipelines.catalog import AnyTable, FoldedTable, Version
from pipelines.divergence import Record, canonical
from pipelines.folds import Folded, advance_of
from shared.domain.envelope import EventEnvelope

_OUTCOMES = 3  # of each key: the last commands that had events
_PAGE, _EVENTS_A_PAGE = 500, 100
_PAGES_OF_A_SAMPLE = 4
_TRIES = 3  # for a row that changes between two requests
_GONE = 410
_NOT_FOUND = 404
_DECIDED = frozenset({_NOT_FOUND, 409, 412, 500})

Envelope = EventEnvelope[Any]
Filters = tuple[tuple[str, str | float], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """wrong: why, by key. counts: what was compared with the log, by what it is."""

    wrong: Mapping[bytes, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=Counter)


def compare(
    url: str,
    path: str | None,
    table: AnyTable,
    rows: Mapping[bytes, bytes],
    events: Mapping[bytes, Sequence[Record]],
    partition: int | None,
) -> Compared:
    """Asks for these keys. rows: what was answered for them before. events: of some of them, all that the log has.

    partition: of a sample's keys, whose rows are looked for on the first pages of the lists that have them. Later
    events than these are not looked at, so the service may go on. Raises ServiceUnavailable.
    """

    async def compared() -> Compared:
        counts, wrong = Counter[str](), dict[bytes, str]()
        async with worker_at(url, table.table.name, path) as worker:
            if isinstance(table, FoldedTable) and not table.is_view:
                pasts = _Pasts(worker, table, counts)

                async def past(key: bytes) -> None:
                    if why := await pasts.difference(key, events[key]):
                        wrong[key] = why

                await at_once(past, events)
            wrong |= await _Lists(worker, table, partition, counts).unlisted(rows)
        return Compared(wrong, counts)

    return asyncio.run(compared())


class _Pasts:
    """The histories of aggregates, and what became of their commands."""

    def __init__(self, worker: Worker, table: FoldedTable, counts: Counter[str]) -> None:
        self._worker = worker
        self._table = table
        self._counts = counts
        self._advance = advance_of(table)
        self._has_history = worker.paths.history and table.topology.history is not None

    async def difference(self, key: bytes, records: Sequence[Record]) -> str | None:
        versions = [Folded(0, self._table.initial, -1)]
        try:
            for record in records:
                versions.append(self._advance(versions[-1], record.offset, key, record.value or b""))
        except Exception:  # the fold says what is wrong with it
            return None
        events = [self._table.pure.event_codec.decode(record.value or b"") for record in records]
        if not events:
            return None
        return await self._history(key, events, versions) or await self._outcomes(key, events)

    async def _history(
        self, key: bytes, events: Sequence[EventEnvelope[Any]], versions: Sequence[Folded]
    ) -> str | None:
        if not self._has_history:
            return None
        shown = list[Mapping[str, Any]]()
        while len(shown) < len(events):
            query = {"cursor": len(shown), "limit": _EVENTS_A_PAGE}
            page = await self._worker.of_row(key, "events", {_NOT_FOUND, _GONE}, **query)
            if page.status_code == _GONE:  # the archive alone has its first ones
                return None
            items = from_json(page.content)["items"] if page.is_success else []
            if not items:
                return f"HTTP answers {len(shown)} events, there are {len(events)}"
            shown += items
        encode = self._table.pure.event_codec.encode
        for number, (item, event) in enumerate(zip(shown, events, strict=False), start=1):
            if differ(item, from_json(encode(event))):
                return f"HTTP answers another event {number}"
        middle = versions[(len(events) + 1) // 2]
        state = to_json(middle.state)
        body = await self._worker.row(key, as_of=middle.sequence)
        self._counts["histories"] += 1
        then = Version(middle.sequence, state, self._table.has_ended(state))
        why = None if then.has_ended else row_difference(body, [then], to_json(self._table.initial))
        return why and f"{why}, as of then"

    async def _outcomes(self, key: bytes, events: Iterable[Envelope]) -> str | None:
        if not self._worker.paths.outcomes:
            return None
        sequences = {event.causation_id: event.sequence for event in events if event.causation_id is not None}
        for command_id, sequence in list(sequences.items())[-_OUTCOMES:]:
            answer = await self._worker.of_row(key, f"commands/{quote(command_id, safe='')}", _DECIDED)
            if answer.status_code == _NOT_FOUND:
                continue  # it was decided too long ago
            self._counts["outcomes"] += 1
            told = from_json(answer.content)["sequence"] if answer.is_success else f"status {answer.status_code}"
            if told != sequence:
                return f"HTTP answers {told} for command {command_id}, which led to event {sequence}"
        return None


class _Lists:
    """Lists by each field that rows are filtered by, and by the fields of each index that has several."""

    def __init__(self, worker: Worker, table: AnyTable, partition: int | None, counts: Counter[str]) -> None:
        self._worker = worker
        self._indexes = [(each,) if isinstance(each, str) else each for each in table.table.indexes]
        self._of = {} if partition is None else {"partitions": str(partition)}
        self._pages = None if partition is None else _PAGES_OF_A_SAMPLE
        self._counts = counts

    async def unlisted(self, rows: Mapping[bytes, bytes]) -> dict[bytes, str]:
        """The keys whose rows are not in a list that should have them, and which list that is."""
        wrong = dict[bytes, str]()
        for names in self._indexes:
            waiting = {key: row for key, row in rows.items() if row}
            for _ in range(_TRIES):
                missing = await self._missing(names, waiting)
                now = dict(zip(missing, await at_once(self._worker.row, missing), strict=True))
                wrong_now = {key for key, row in now.items() if row == waiting[key]}
                waiting = {key: row for key, row in now.items() if row}
            wrong = dict.fromkeys(wrong_now, f"HTTP does not list it by {' and '.join(names)}") | wrong
        return wrong

    async def _missing(self, names: Sequence[str], rows: Mapping[bytes, bytes]) -> list[bytes]:
        by_query = defaultdict[Filters, dict[str, list[bytes]]](lambda: defaultdict(list))
        for key, row in rows.items():
            body = from_json(row)
            values = [body.get(name) for name in names]
            if all(isinstance(value, bool | int | float | str) for value in values):
                by_query[_filters(names, values)][canonical(body)].append(key)
        absent = await at_once(lambda query: self._absent(query, by_query[query]), by_query)
        return [key for keys in absent for key in keys]

    async def _absent(self, filters: Filters, wanted: dict[str, list[bytes]]) -> list[bytes]:
        """The keys that a list lacks. wanted: the keys, by what is shown of their rows."""
        query = dict(filters) | {"limit": _PAGE, "complete": "true", **self._of}
        page, pages = await self._worker.rows(**query), 1
        while page is not None:
            for shown in wanted.keys() & set(map(canonical, page["items"])):
                self._counts["listed"] += len(wanted.pop(shown))
            if page["cursor"] is None or not wanted:
                return [key for keys in wanted.values() for key in keys]
            if pages == self._pages:
                break
            page, pages = await self._worker.rows(**query, cursor=page["cursor"]), pages + 1
        return []


def _filters(names: Sequence[str], values: Sequence[Any]) -> Filters:
    filters = list[tuple[str, str | float]]()
    for name, value in zip(names, values, strict=True):
        if isinstance(value, int | float) and not isinstance(value, bool):
            filters += [(f"{name}_min", value), (f"{name}_max", value)]
        else:
            filters.append((name, str(value).lower() if isinstance(value, bool) else value))
    return tuple(filters)
