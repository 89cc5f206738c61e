"""A service's topics and positions as files, to be carried to another machine.

Each partition is a file of its committed records, in full. What is personal stays sealed: its keys are in a database
that no topic includes. SHA256SUMS has a line for each file, as `sha256sum --check` reads it.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from msgspec import DecodeError, Struct, json, msgpack

from shared.domain.errors import OnefoldError
from shared.kafka.access import client_config
from shared.kafka.brokers import Brokers, Positions, by_place
from shared.kafka.offsets import Offsets
from shared.kafka.spans import Span, WholeRecord, read_whole
from shared.runtime.positions import Place
from shared.topology.declaration import Service
from shared.topology.topics import Topic

QUIET_DEADLINE_S = 30.0
_PAUSE_S = 0.05
_MANIFEST = "manifest.json"
_SUMS = "SHA256SUMS"
_LENGTH = struct.Struct(">I")
_TOLD_EVERY = 10_000
_FORMAT = 1

Tell = Callable[[int, int], object]
"""Told now and then how much is done, and of how much."""


class NeverQuiet(OnefoldError):
    """The workers commit all the time, so no moment was found at which positions and records belong together.

    Operator action: export it when there is less to do, or stop its workers meanwhile.
    """


class ExportUnreadable(OnefoldError):
    """The folder holds no export, or not what was exported.

    Operator action: copy it again from where it was made, or make it again.
    """


class AnotherService(OnefoldError):
    """This checkout declares other topics than those that were exported.

    Operator action: check out the release that wrote them.
    """


class Part(Struct, frozen=True):
    """One partition: the offsets at which its log begins and ends, and how many records lie there."""

    file: str
    start: int
    end: int
    records: int


class Manifest(Struct, frozen=True):
    """topics: their ids where they were exported. positions: of the group, by topic."""

    format: int
    service: str
    group: str
    partitions: int
    topics: dict[str, str]
    positions: dict[str, Positions]
    parts: dict[str, dict[int, Part]]


def exported_topics(service: Service) -> Sequence[Topic]:
    """Its own, and its neighbours' that it reads or writes: all that a story of its messages goes through."""
    return list(dict.fromkeys([*service.topology.all_topics(), *service.neighbours]))


def export(service: Service, bootstrap: str, folder: Path, tell: Tell) -> Manifest:
    """Writes all that is committed now; workers may run. Raises NeverQuiet, BrokersUnavailable or FileExistsError.

    Rows are read first, as compaction may take one that is written again meanwhile.
    """
    folder.mkdir(parents=True)  # an export is written once
    topology, brokers = service.topology, Brokers(bootstrap)
    names = [topic.name for topic in exported_topics(service)]
    names.sort(key=lambda name: not name.endswith("-changelog"))
    spans, positions = _moment(brokers, topology.group, names)
    total, done = sum(span.end - span.start for span in spans), 0
    parts: dict[str, dict[int, Part]] = {name: {} for name in names}
    for span in spans:
        file = f"{span.place.topic}-{span.place.number}.records.gz"
        count = 0
        with gzip.open(folder / file, "wb", compresslevel=1) as out:
            for record in read_whole(client_config(bootstrap), span) if span.start < span.end else ():
                packed = msgpack.encode(record)
                out.write(_LENGTH.pack(len(packed)) + packed)
                count += 1
                if count % _TOLD_EVERY == 0:
                    tell(done + record.offset - span.start, total)
        parts[span.place.topic][span.place.number] = Part(file, span.start, span.end, count)
        done += span.end - span.start
        tell(done, total)
    ids = Offsets(bootstrap).topic_ids(names)
    manifest = Manifest(_FORMAT, topology.service, topology.group, topology.partitions, ids, positions, parts)
    (folder / _MANIFEST).write_bytes(json.format(json.encode(manifest)) + b"\n")
    files = sorted(path for path in folder.iterdir())
    (folder / _SUMS).write_text("".join(f"{_digest(path)}  {path.name}\n" for path in files))
    return manifest


def _moment(brokers: Brokers, group: str, names: Collection[str]) -> tuple[list[Span], dict[str, Positions]]:
    """Spans of all partitions, and the group's positions, as of one moment between two transactions."""
    places = [Place(name, number) for name in names for number in range(brokers.partitions(name))]
    deadline = time.monotonic() + QUIET_DEADLINE_S
    while True:
        before = brokers.positions(group)
        bounds = brokers.bounds(places)
        if all(each.stable == each.end for each in bounds.values()) and brokers.positions(group) == before:
            spans = [Span(place, bounds[place].start, bounds[place].end) for place in places]
            return spans, {topic: found for topic, found in before.items() if topic in names}
        if time.monotonic() > deadline:
            raise NeverQuiet(
                f"{group} has committed all the time for {QUIET_DEADLINE_S:.0f} s; fix: export it when there is less "
                f"to do, or stop its workers meanwhile"
            )
        time.sleep(_PAUSE_S)


class Export:
    """A folder that `export` wrote, whose files are as they were then."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        """Raises ExportUnreadable, naming the file that was changed."""
        self._folder = folder
        self.sums = self._checked(tell)
        self.manifest = _manifest_in(folder)

    def _checked(self, tell: Tell) -> str:
        sums = self._folder / _SUMS
        if not sums.is_file():
            raise ExportUnreadable(f"{self._folder} has no {_SUMS}; fix: name a folder that `export` has written")
        lines = sums.read_text().splitlines()
        for done, line in enumerate(lines):
            digest, _, name = line.partition("  ")
            path = self._folder / name
            if not path.is_file() or _digest(path) != digest:
                what = "was changed since it was exported" if path.is_file() else "is missing"
                raise ExportUnreadable(f"{path} {what}; fix: copy it again from where it was made")
            tell(done + 1, len(lines))
        return hashlib.sha256(sums.read_bytes()).hexdigest()

    def refuse_unless_of(self, service: Service) -> None:
        """Raises AnotherService."""
        found, topology = self.manifest, service.topology
        declared = {topic.name for topic in exported_topics(service)}
        if (found.group, found.partitions) != (topology.group, topology.partitions):
            raise AnotherService(
                f"the export is of {found.group} with {found.partitions} partitions, and this checkout declares "
                f"{topology.group} with {topology.partitions}; fix: check out the release that was exported"
            )
        if missing := sorted(found.topics.keys() - declared):
            raise AnotherService(
                f"the export has {', '.join(missing)}, which {topology.service} of this checkout does not; "
                f"fix: check out the release that was exported"
            )

    def places(self) -> Mapping[Place, Part]:
        parts = self.manifest.parts
        return {Place(topic, number): part for topic, some in parts.items() for number, part in some.items()}

    def records(self, place: Place, end: int | None = None) -> Iterator[WholeRecord]:
        """In order, those below `end`."""
        found = self._all(self.places()[place])
        return found if end is None else takewhile(lambda each: each.offset < end, found)

    def _all(self, part: Part) -> Iterator[WholeRecord]:
        decoder = msgpack.Decoder(WholeRecord)
        with gzip.open(self._folder / part.file, "rb") as file:
            while head := file.read(_LENGTH.size):
                yield decoder.decode(file.read(_LENGTH.unpack(head)[0]))

    def positions(self) -> Mapping[Place, int]:
        return by_place(self.manifest.positions)


def service_in(folder: Path) -> str:
    """Whose export the folder holds. Raises ExportUnreadable."""
    return _manifest_in(folder).service


def _manifest_in(folder: Path) -> Manifest:
    try:
        return json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ExportUnreadable(f"{folder} has no {_MANIFEST}; fix: name a folder that `export` has written") from None
    except DecodeError as error:
        raise ExportUnreadable(f"{folder / _MANIFEST}: {error}; fix: import it with the release it is of") from None


def inputs_of(service: Service, places: Iterable[Place]) -> Sequence[Place]:
    """Those of `places` from which its workers can compute everything else again: commands, and what neighbours say."""
    topology = service.topology
    commands = {table.source.name for table in topology.tables if table.is_of_commands}
    names = commands | {topic.name for topic in service.handled}
    return [place for place in places if place.topic in names]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
