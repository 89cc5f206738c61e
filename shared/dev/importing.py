"""`import`: fills the empty broker of `up` with what `export` wrote, or with the part of it that led to one message.

The broker's files are written while it does not run: through its door no record would keep its offset or its time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from shared.dev.stack import Stack
from shared.dev.stages import Stage, StageFailed, stage
from shared.domain.envelope import identity_in
from shared.kafka.batches import batches
from shared.kafka.brokers import Brokers
from shared.kafka.offsets import Offsets
from shared.kafka.producer import CommandProducer
from shared.kafka.spans import WholeRecord
from shared.operations.export import AnotherService, Export, inputs_of
from shared.parking.parked import NOTE_ID, PARKED_CODEC, note_of, noted_in
from shared.runtime.positions import Place, parse_positions
from shared.topology.declaration import Service
from shared.topology.topics import Topology

_SEGMENT_BYTES = 256 << 20
_STATE = "import.json"
_FRESH = "`python3 dev.py down`, then remove .onefold/up, or move it away"


class Cut(NamedTuple):
    """at: the message that comes next. ends: up to where each partition is imported."""

    at: tuple[Place, int]
    ends: Mapping[Place, int]


def fill(service: Service, topologies: Sequence[Topology], folder: Path, root: Path, until: str | None) -> Cut | None:
    """Fills the stack in `root`, which does not run. Raises ExportUnreadable, AnotherService, StageFailed …

    until: a place, `topic/partition@offset`, or a message's id. Then only what came in before that message is imported,
    nothing that the service made of it: its workers do that again, from the start.
    """
    with stage("[1/4]", "check") as now:
        export = Export(folder, lambda done, total: now.progress(done, total, "files"))
        export.refuse_unless_of(service)
        _refuse_undeclared(export, topologies)
        now.done = f"{len(export.places())} partitions, as exported"
    with stage("[2/4]", "begin") as now:
        cut = None if until is None else _cut(export, service, until)
        stack = Stack(root, {}, topologies=topologies)
        ids = _prepared(stack, export)
        now.done = stack.bootstrap
    with stage("[3/4]", "records") as now:
        ends = {place: part.end for place, part in export.places().items()} if cut is None else cut.ends
        now.done = f"{_write(stack, export, ends, ids, now):,} records written"
    with stage("[4/4]", "positions") as now:
        positions = export.positions() if cut is None else {}
        _finish(stack, export, ends, positions)
        now.done = f"{len(positions)} set" if positions else "none: it begins at the start"
    if cut is not None:
        (root / _STATE).write_text(json.dumps({"export": export.sums, "place": [*cut.at[0]], "offset": cut.at[1]}))
    return cut


def send_next(topology: Topology, folder: Path, root: Path, bootstrap: str) -> tuple[Place, int]:
    """Sends the message that `import --until` stopped before, and, asked again, the one behind it. Its time is now.

    Returns where it lies. Raises StageFailed and ExportUnreadable.
    """
    export = Export(folder, lambda *_: None)
    file = root / _STATE
    state = json.loads(file.read_text()) if file.exists() else {}
    if state.get("export") != export.sums:
        raise StageFailed(f"{folder} was not imported into {root} with --until", "`import DIR --until …` first")
    place = Place(*state["place"])
    record = next((each for each in export.records(place) if each.offset >= state["offset"]), None)
    if record is None:
        raise StageFailed(f"{place} has no record after {state['offset'] - 1}", "all of it was sent")
    offset = asyncio.run(_sent(CommandProducer(bootstrap, [topology]), place, record))
    file.write_text(json.dumps(state | {"offset": record.offset + 1}))
    return place, offset


async def _sent(producer: CommandProducer, place: Place, record: WholeRecord) -> int:
    _, offset = await producer.send(place.topic, record.key or b"", record.value or b"", place.number)
    return offset


def _refuse_undeclared(export: Export, topologies: Iterable[Topology]) -> None:
    """Raises AnotherService for topics that no service of this checkout creates, or with other partitions."""
    declared = {topic.name: each.partitions for each in topologies for topic in each.all_topics()}
    for name, parts in export.manifest.parts.items():
        if declared.get(name) != len(parts):
            raise AnotherService(
                f"the export has {name} with {len(parts)} partitions, and this checkout declares "
                f"{declared.get(name, 'none')}; fix: check out the release that was exported"
            )


def _cut(export: Export, service: Service, until: str) -> Cut:
    """Raises StageFailed."""
    inputs = inputs_of(service, export.places())
    place, target = _found(export, until, inputs)
    _refuse_if_not_of_inputs(export, service, inputs)
    ends = {each: target.offset if each == place else _end_at(export, each, target.timestamp) for each in inputs}
    return Cut((place, target.offset), ends)


def _found(export: Export, until: str, inputs: Sequence[Place]) -> tuple[Place, WholeRecord]:
    """The message, or where it is one that the service wrote, what it wrote it for."""
    found = _by_place(export, until) or _by_id(export, until, export.places())
    for _ in range(2):
        if found is None:
            raise StageFailed(f"the export has no message {until}", "name one as `story` shows it")
        if found[0] in inputs:
            return found
        body = identity_in(found[1].value)
        cause = None if body is None else body.causation_id
        found = _by_id(export, cause, inputs) if cause else None
    raise StageFailed(f"{until} follows from nothing that came in", "name a command, or an event of a neighbour")


def _by_place(export: Export, text: str) -> tuple[Place, WholeRecord] | None:
    try:
        [(place, offset)] = parse_positions(re.sub(r"/(\d+)$", r"@\1", text)).items()  # as `story` writes it, too
    except ValueError:
        return None
    if place not in export.places():
        return None
    return next(((place, each) for each in export.records(place) if each.offset >= offset), None)


def _by_id(export: Export, id_: str, places: Iterable[Place]) -> tuple[Place, WholeRecord] | None:
    """The earliest that has it as its own id, or else as that of its story, as what a caller gives is."""
    sought, of_story = id_.encode(), list[tuple[Place, WholeRecord]]()
    for place in places:
        for each in export.records(place):
            if each.value and sought in each.value and (body := identity_in(each.value)):
                if body.id == id_:
                    return place, each
                if body.correlation_id == id_:
                    of_story.append((place, each))
    return min(of_story, key=lambda found: found[1].timestamp, default=None)


def _end_at(export: Export, place: Place, at_ms: int) -> int:
    """Up to where the partition had come by then."""
    later = (each.offset for each in export.records(place) if each.timestamp > at_ms)
    return next(later, export.places()[place].end)


def _refuse_if_not_of_inputs(export: Export, service: Service, inputs: Sequence[Place]) -> None:
    """Raises StageFailed where the inputs that there are would not lead to the same rows again."""
    cut = [place for place in inputs if export.places()[place].start]
    if cut:
        raise StageFailed(f"retention has removed what {min(cut)} began with", "import all of it, without --until")
    if service.decider is None:
        return
    for place in export.places():
        if place.topic == service.events.name:
            for each in export.records(place):
                if b'"historical":true' in (each.value or b""):
                    problem = f"{place}@{each.offset} was loaded by a backfill, and no command leads to it"
                    raise StageFailed(problem, "import all of it, without --until")


def _prepared(stack: Stack, export: Export) -> Mapping[str, str]:
    """Starts the broker and makes the topics; the ids that they have here, by those where they were exported.

    Raises StageFailed unless they are empty.
    """
    try:
        stack.start_brokers()
        stack.provision()
        found, brokers = export.manifest, Brokers(stack.bootstrap)
        bounds = brokers.bounds([*export.places()])
        if filled := sorted(place for place, each in bounds.items() if each.end):
            raise StageFailed(f"{filled[0]} is not empty, nor may it be to keep offsets: {stack.root}", _FRESH)
        if brokers.positions(found.group):
            raise StageFailed(f"{found.group} has positions already in {stack.root}", _FRESH)
        here = Offsets(stack.bootstrap).topic_ids(found.topics.keys())
        return {there: here[name] for name, there in found.topics.items()}
    finally:
        stack.stop()


def _write(stack: Stack, export: Export, ends: Mapping[Place, int], ids: Mapping[str, str], now: Stage) -> int:
    parts, written = export.places(), 0
    total = sum(parts[place].records for place in ends)
    for place, end in ends.items():

        def counted(records: Iterable[WholeRecord]) -> Iterator[WholeRecord]:
            nonlocal written
            for each in records:
                written += 1
                if written % 10_000 == 0:
                    now.advance(written, total, "records")
                yield _with_ids_of_here(each, ids) if each.key == NOTE_ID.encode() else each

        start = parts[place].start
        stack.kafka.write_log(place, start, batches(counted(export.records(place, end)), start, end), _SEGMENT_BYTES)
    return written


def _with_ids_of_here(record: WholeRecord, ids: Mapping[str, str]) -> WholeRecord:
    """The note of the topics that a partition has handled records of: here they have other ids."""
    if record.value is None:
        return record
    row = PARKED_CODEC.decode(record.value)
    noted = {topic: ids.get(there, there) for topic, there in noted_in(row.state).items()}
    here = replace(row, state=note_of(row.state.partition, noted))
    return record._replace(value=PARKED_CODEC.encode(here))


def _finish(stack: Stack, export: Export, ends: Mapping[Place, int], positions: Mapping[Place, int]) -> None:
    """Starts the broker on what was written, sets the positions, and stops it. Raises StageFailed."""
    try:
        stack.start_brokers()
        brokers = Brokers(stack.bootstrap)
        for place, found in brokers.bounds([*ends]).items():
            if found.end != ends[place]:
                raise StageFailed(f"{place} ends at {found.end} here, and at {ends[place]} in the export", _FRESH)
        if positions:
            brokers.commit(export.manifest.group, export.manifest.positions)
    finally:
        stack.stop()
