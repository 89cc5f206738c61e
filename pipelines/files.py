"""Files of rows as people have them: read as what they say they are, or refused with the line and the fix.

All files of a source are checked before Spark starts; its tasks then read what was checked, with the same code, once
for the rows, once for their number, and once more where Spark's cache has lost them. A file that changed meanwhile ends
the run. One file, or one row group of Parquet, is read by one task, which holds a batch of it in memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipelines.arrow import in_batches
from shared.domain.errors import OnefoldError

PROBLEM = "__problem"  # the column beside those of the source: null, or as follows
# why: the row cannot be read as the mapping says; texts: of its columns that are null for that reason
_PROBLEM = pa.struct([("why", pa.string()), ("texts", pa.map_(pa.string(), pa.string()))])

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata/*.metadata.json*": "Iceberg"}
_UNREAD = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook; fix: unpack it, or save it as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; fix: save it as CSV",
    b"\x28\xb5\x2f\xfd": "packed by zstd; fix: unpack it",
    b"\xfd7zXZ": "packed by xz; fix: unpack it",
    b"BZh": "packed by bzip2; fix: unpack it",
    b"\x04\x22\x4d\x18": "packed by lz4; fix: unpack it",
    b"\xff\x06\x00\x00sNaPpY": "packed by snappy; fix: unpack it",
    b"7z\xbc\xaf": "a 7-Zip archive; fix: unpack it",
    b"Rar!\x1a": "a RAR archive; fix: unpack it",
    b"%PDF-": "a PDF; fix: get its rows as CSV",
    b"Obj\x01": "Avro; fix: write it as Parquet",
    b"ARROW1\0": "Arrow, or Feather; fix: write it as Parquet",
    b"SEQ\x06": "a SequenceFile of Hadoop; fix: write it as Parquet",
    b"SQLite format 3": "a database of SQLite; fix: export its table as CSV",
    b"version https://git-lfs": "a pointer of Git LFS, without the file; fix: `git lfs pull`",
}
_ORC = b"ORC"
_TAR = slice(257, 262), b"ustar"
# of a first line. A header may begin with <TICKER>, and be one of [id]
_TEXTS = {
    re.compile(r"\s*(\{\s*([\"}]|$)|\[\s*([\[{\"\]]|$))"): "JSON; fix: write it as CSV with a header, or as Parquet",
    re.compile(r"\s*<([!?]|[A-Za-z][^<>]*($|>(<|\s*$)))"): "HTML or XML; fix: save it as CSV",
}
_NO_DATA = re.compile(r"\.|_SUCCESS$|_(common_)?metadata$|_temporary$|_(started|committed)_\d+$")  # of other tools
_FOLDER = "a folder's name"  # what a column is that no file has
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_LINE = 1 << 20  # characters; a field may have 131,072, as Python's reader of CSV has it
_LOST = {
    "\0": "a NUL byte, which no text has; fix: name the file's encoding in `csv.encoding`, or write it anew",
    "\ufeff": "a byte order mark within the file; fix: load joined files apart, or say utf-16 for utf-16-le",
    "\ufffd": "U+FFFD, which stands for a character that was lost; fix: export it again, in UTF-8",
}
_DIGITS = 38  # of a decimal, in Arrow and in Spark
_SHOWN = 200  # characters
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
_WIDER[pa.float16()] = pa.float32()
_ZONE = re.compile(r"%Z|Z\b")
# of a time, what is left by formats that end with its day, its hour, …
_TRIALS = [
    datetime.fromisoformat("2026-11-29T23:58:57.123456"[:end]).replace(tzinfo=UTC) for end in (10, 13, 16, 19, 26)
]
_LOCAL = re.compile(r"timestamp\[\w+\]")  # of a type's name: without an offset
_NUMBER = "%[GHIMSUVWYdfjmuw]"  # a directive of digits
_ADJOIN = re.compile(f"(?<={_NUMBER})(?={_NUMBER})")
# one before another, the last of several, another one, whitespace, a character
_PART = re.compile(rf"({_NUMBER}(?={_NUMBER}))|((?<={_NUMBER}){_NUMBER})|(%.)|\s+|.")


class BadSource(OnefoldError):
    """A file is not what it says it is, or not what the mapping says: nothing of the source is taken.

    Operator action: correct the line that the message names, or what the mapping says of such files.
    """


class Csv(BaseModel):
    """How CSV is written: by default as RFC 4180 has it, in UTF-8, each row on one line.

    quote: none if it is empty. numbers: columns of decimals, and how many digits they have at most behind the decimal
    sign. Every other column is text, and an empty field is null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    encoding: str = "utf-8"
    separator: str = Field(",", min_length=1, max_length=1)
    quote: str = Field('"', max_length=1)
    line_breaks: bool = False
    decimal: Literal[".", ","] = "."
    thousands: str = Field("", max_length=1)
    numbers: dict[str, int] = {}

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str) -> str:
        try:
            io.TextIOWrapper(io.BytesIO(), encoding)
            name = codecs.lookup(encoding).name
        except LookupError as unknown:
            raise ValueError(str(unknown)) from None
        return name

    @model_validator(mode="after")
    def _signs_differ(self) -> Csv:
        if self.separator in {self.quote, "\r", "\n"}:
            raise ValueError(f"{self.separator!r} cannot separate fields")
        if self.thousands and (self.thousands == self.decimal or self.thousands.isalnum()):
            raise ValueError(f"{self.thousands} cannot separate thousands")
        if bad := [name for name, digits in self.numbers.items() if not 0 <= digits < _DIGITS]:
            raise ValueError(f"numbers.{bad[0]}: 0 to {_DIGITS - 1} digits")
        return self


class Times(BaseModel):
    """What times that state no offset mean. formats: of a CSV's columns of times, as Python's `strptime` has them.

    zone: whose local times they are. twice: which one it is when clocks were set back and showed a time twice.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    zone: str = "UTC"
    twice: Literal["earlier", "later"] | None = None
    formats: dict[str, str] = {}

    @field_validator("zone")
    @classmethod
    def _is_known(cls, zone: str) -> str:
        try:
            return ZoneInfo(zone).key
        except (OSError, LookupError, ValueError):
            raise ValueError(f"no time zone is named {zone}") from None

    @field_validator("formats")
    @classmethod
    def _leave_nothing_open(cls, formats: dict[str, str]) -> dict[str, str]:
        for name, format_ in formats.items():
            if doubt := _doubt(format_):
                raise ValueError(f"{name}: {format_!r}: {doubt}")
        return formats


def _doubt(format_: str) -> str | None:
    """What `strptime` would guess, or not say of a time that it was given."""
    if _ZONE.search(format_):
        return "a zone's name is left unread; fix: %z for an offset or Z, or `times.zone`"
    if re.search("%[yx]", format_.replace("%%", "")):
        return "the century of a year is left open; fix: have years of four digits written, %Y"
    try:
        text = _TRIALS[-1].strftime(format_)
        read = datetime.strptime(text, format_)  # noqa: DTZ007
    except (ValueError, re.error) as error:
        return f"{error}; fix: use each of `strptime`'s directives once, and no others"
    if read.replace(tzinfo=UTC) not in _TRIALS or read.strftime(format_) != text:
        return "not every part of a time is in it, or one is left unread; fix: name year, month and day, %p with %I"
    return None


class Reading(BaseModel):
    """How the files of a source are read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    csv: Csv = Csv()
    times: Times = Times()


@dataclass(frozen=True, slots=True)
class FileSplit:
    """What one task reads: a file of CSV, or a row group of Parquet. folders: values that folders' names give it.

    checked: the file's size and the time of its last change, before it was checked.
    """

    file: str
    group: int | None
    folders: tuple[tuple[str, str | None], ...]
    checked: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """schema: the columns of every split, then PROBLEM."""

    splits: list[FileSplit]
    schema: pa.Schema
    reading: Reading

    def read(self, split: FileSplit) -> Iterator[pa.RecordBatch]:
        """Raises BadSource, for what only reading shows of Parquet, and for files that changed since they were checked.

        A value that its column cannot take is null, and PROBLEM says so, with its text.
        """
        batches = _csv_batches if split.group is None else _parquet_batches
        _refuse_changed(split)
        yield from batches(split, self.schema, self.reading)
        _refuse_changed(split)


def find(source: str, reading: Reading | None = None) -> Source:
    """Reads all CSV, and the schemas of Parquet. Raises BadSource.

    source: a file, or a folder with the files of all its subfolders. Those have the same columns, in any order; the
    name `day=1997-01-01` of a subfolder gives its files the column `day`, as text.
    """
    reading = reading or Reading()
    columns, splits = dict[str, dict[str, Any]](), list[FileSplit]()
    for file in _files(source):
        state, parquet = _state(file), _is_parquet(file)
        schema, groups = (_parquet_schema if parquet else _csv_schema)(file, reading)
        folders = tuple(_of_folders(file, Path(source)))
        _refuse_names(file, [*schema.names, *(name for name, _ in folders)])
        columns[str(file)] = dict(zip(schema.names, schema.types, strict=True)) | {name: _FOLDER for name, _ in folders}
        splits += [FileSplit(str(file), group if parquet else None, folders, state) for group in range(groups)]
    (first, kinds), *others = columns.items()
    for other, its in others:
        _refuse_difference(first, kinds, other, its)
    _refuse_copies(splits)
    fields = [(name, pa.string() if kind is _FOLDER else kind) for name, kind in kinds.items()]
    return Source(splits, pa.schema([*fields, (PROBLEM, _PROBLEM)]), reading)


def _state(file: Path) -> tuple[int, int]:
    now = file.stat()
    return now.st_size, now.st_mtime_ns


def _refuse_changed(split: FileSplit) -> None:
    if _state(Path(split.file)) != split.checked:
        raise BadSource(f"{split.file}: changed since it was checked; fix: run this again once nothing writes to it")


def _files(source: str) -> list[Path]:
    """In the order of their paths; at least one."""
    path = Path(source)
    if path.is_file():
        return [path.absolute()]
    if not path.is_dir():
        fix = "name a file or a folder on this machine's disk; a pattern is not expanded"
        raise BadSource(f"{source}: there is no such file or folder; fix: {fix}")
    for mark, table in _TABLES.items():
        if any(path.rglob(mark)) or any(any(above.glob(mark)) for above in path.absolute().parents):
            fix = "write what it has now as Parquet"
            raise BadSource(f"{source}: a table of {table}, whose files are partly of its past; fix: {fix}")
    found = list(_files_in(path.absolute()))
    if not found:
        raise BadSource(f"{source}: no files are in it; fix: name another folder")
    return found


def _files_in(folder: Path) -> Iterator[Path]:
    """Raises BadSource for what is neither a file nor a folder: a link to a folder may be one to a folder above it."""
    for path in sorted(folder.iterdir()):
        if _NO_DATA.match(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files_in(path)
        elif path.is_file():
            yield path
        else:
            raise BadSource(f"{path}: a link to a folder, or to nothing; fix: put the files themselves there")


def _is_parquet(file: Path) -> bool:
    """By its first bytes: a suffix may be wrong. Raises BadSource."""
    with file.open("rb") as opened:
        start = opened.read(512)
        opened.seek(-min(4, _state(file)[0]), io.SEEK_END)
        is_orc = start.startswith(_ORC) and opened.read(3) == _ORC  # the last byte is a length
    if is_orc:
        raise BadSource(f"{file}: ORC; fix: write it as Parquet")
    _refuse_unread(file, start)
    if start.startswith(_GZIP):
        start = b""
        with suppress(EOFError, OSError, zlib.error), gzip.open(file) as unpacked:  # its line is told as it is read
            start = unpacked.read(512)
        for magic, what in ((_PARQUET, "Parquet"), (_GZIP, "gzip")):
            if start.startswith(magic):
                raise BadSource(f"{file}: {what}, packed by gzip; fix: unpack it")
        _refuse_unread(file, start)
        return False
    return start.startswith(_PARQUET)


def _refuse_unread(file: Path, start: bytes) -> None:
    for magic, what in _UNREAD.items():
        if start.startswith(magic):
            raise BadSource(f"{file}: {what}")
    place, magic = _TAR
    if start[place] == magic:
        raise BadSource(f"{file}: an archive of tar; fix: unpack it")


def _of_folders(file: Path, source: Path) -> Iterator[tuple[str, str | None]]:
    for folder in file.relative_to(source.absolute()).parent.parts if source.is_dir() else ():
        name, equals, value = folder.partition("=")
        if equals:
            yield unquote(name), None if value == _NULL_FOLDER else unquote(value)


def _refuse_names(file: Path, names: list[str]) -> None:
    """Names that SQL could not tell apart, or nobody could write."""
    seen = {PROBLEM: "backfill's own"}
    for number, name in enumerate(names, 1):
        if not name.strip() or not name.isprintable():
            raise BadSource(
                f"{file}: column {number} is named {name!r}; fix: give it a name without line breaks and such"
            )
        if other := seen.get(name.lower()):
            raise BadSource(f"{file}: two columns, {other} and {name}, are one to SQL; fix: rename one of them")
        seen[name.lower()] = name


def _refuse_copies(splits: list[FileSplit]) -> None:
    """Two files with the same rows, such as a download and `sales (1).csv`, would count each of them twice."""
    alike = defaultdict[Any, list[str]](list)
    for split in splits:
        if not split.group:
            alike[split.checked[0], split.folders].append(split.file)
    for files in alike.values():
        seen = dict[bytes, str]()
        for file in files if len(files) > 1 else ():
            with Path(file).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").digest()
            if (other := seen.setdefault(digest, file)) != file:
                raise BadSource(f"{file}: the same bytes as {other}; fix: remove one of them")


def _refuse_difference(first: str, columns: dict[str, Any], other: str, its: dict[str, Any]) -> None:
    """columns: the type of each, or _FOLDER."""
    if differ := columns.items() ^ its.items():
        name = min(name for name, _ in differ)
        here, there = its.get(name, "none"), columns.get(name, "none")
        raise BadSource(f"{other}: column {name} is {here}, and {there} in {first}; fix: load them one by one")


# CSV


def _csv_schema(file: Path, reading: Reading) -> tuple[pa.Schema, int]:
    with closing(_csv_rows(file, reading.csv)) as rows:
        line, header = next(rows, (1, None))
        if header is None:
            raise BadSource(f"{file}: empty, without a header; fix: remove it, or write the header")
        _refuse_names(file, header)
        has_rows = False
        for line, row in rows:
            _refuse_ragged(file, line, header, row)
            has_rows = True
    typed = {name: pa.decimal128(_DIGITS, digits) for name, digits in reading.csv.numbers.items()}
    typed |= dict.fromkeys(reading.times.formats, pa.timestamp("us", "UTC"))
    if missing := typed.keys() - set(header):
        raise BadSource(f"{file}: no column {min(missing)}, which the mapping describes; fix: correct either")
    return pa.schema([(name, typed.get(name, pa.string())) for name in header]), int(has_rows)


def _refuse_ragged(file: Path, line: int, header: list[str], row: list[str]) -> None:
    if len(row) != len(header):
        told = repr(row)[1 : _SHOWN + 1]
        fix = "correct the line, or name the separator in `csv.separator`"
        raise BadSource(f"{file}, line {line}: {len(row)} fields, and {len(header)} in the header: {told}; fix: {fix}")


def _csv_batches(split: FileSplit, schema: pa.Schema, reading: Reading) -> Iterator[pa.RecordBatch]:
    file = Path(split.file)
    rows = _csv_rows(file, reading.csv)
    _, header = next(rows)
    readers = _readers(reading)
    given, folders = [name for name in schema.names if name in header], dict(split.folders)
    places = [(header.index(name), name, readers.get(name)) for name in given]
    rest = tuple(folders[name] for name in schema.names[len(given) : -1])

    def values() -> Iterator[tuple[Any, ...]]:
        for line, row in rows:
            _refuse_ragged(file, line, header, row)
            problems = list[_Problem]()
            yield *(_value(row[place], name, read, problems) for place, name, read in places), *rest, _joined(problems)

    return in_batches(values(), schema)


class _Problem(NamedTuple):
    column: str
    why: str
    text: str


def _joined(problems: list[_Problem]) -> dict[str, Any] | None:
    """As PROBLEM has them."""
    if not problems:
        return None
    why = ", and ".join(f"{each.column}: {each.why}" for each in problems)
    return {"why": why, "texts": [(each.column, each.text) for each in problems]}


def _value(text: str, name: str, read: Callable[[str], Any] | None, problems: list[_Problem]) -> Any:
    if not text or read is None:
        return text or None
    try:
        return read(text)
    except (ValueError, OverflowError) as error:
        problems.append(_Problem(name, str(error), text))
        return None


def _readers(reading: Reading) -> dict[str, Callable[[str], Any]]:
    numbers = {name: _number_reader(reading.csv, digits) for name, digits in reading.csv.numbers.items()}
    return numbers | {name: partial(_time, reading.times, format_) for name, format_ in reading.times.formats.items()}


def _number_reader(how: Csv, digits: int) -> Callable[[str], Decimal]:
    whole = rf"[0-9]{{1,3}}(?:{re.escape(how.thousands)}[0-9]{{3}})+|[0-9]+" if how.thousands else "[0-9]+"
    fraction = rf"(?:{re.escape(how.decimal)}([0-9]{{1,{digits}}}))?" if digits else "()"
    pattern = re.compile(f"([+-]?)({whole}){fraction}")

    def number(text: str) -> Decimal:
        if (found := pattern.fullmatch(text)) is None:
            raise ValueError(f"no number with at most {digits} digits behind the {how.decimal!r}")
        sign, units, parts = found.groups()
        units = units.replace(how.thousands, "") if how.thousands else units
        if len(units.lstrip("0")) > _DIGITS - digits:
            raise ValueError(f"more than {_DIGITS - digits} digits before the {how.decimal!r}")
        return Decimal(f"{sign}{units}.{parts}" if parts else f"{sign}{units}")

    return number


@cache
def _apart(format_: str) -> tuple[re.Pattern[str], str]:
    """What splits a text where directives of digits adjoin, if each has all of its own, and the format of the text with
    spaces there: `strptime` takes the next one's digit where a zero is missing."""
    written = _PART.sub(_written, format_) if _ADJOIN.search(format_) else ".*"
    return re.compile(f"({written})", re.IGNORECASE | re.DOTALL), _ADJOIN.sub(" ", format_)


def _written(part: re.Match[str]) -> str:
    before, last, other = part.groups()
    if other or last == "%f":  # of a second, any of its digits may be there
        return ".+?"
    if before or last:
        return rf"\d{{{len(_TRIALS[-1].strftime(part[0]))}}}{')(' if before else ''}"
    return r"\s+" if part[0].isspace() else re.escape(part[0])


def _time(times: Times, format_: str, text: str) -> datetime:
    written, spaced = _apart(format_)
    try:
        if (found := written.fullmatch(text)) is None:
            raise ValueError
        at = datetime.strptime(" ".join(found.groups()), spaced)  # noqa: DTZ007
    except ValueError:  # its text has the value in it: no two rows would have the same reason
        raise ValueError(f"no time as {format_!r} has it") from None
    return instant(at, times)


def instant(at: datetime, times: Times) -> datetime:
    """In UTC. Raises ValueError for a local time that clocks skipped, or showed twice, and OverflowError."""
    if at.tzinfo is not None:
        return at.astimezone(UTC)
    earlier, later = (at.replace(tzinfo=ZoneInfo(times.zone), fold=fold).astimezone(UTC) for fold in (0, 1))
    if earlier == later:
        return earlier
    if later < earlier:
        raise ValueError(f"was skipped by the clocks of {times.zone}")
    if times.twice is None:
        raise ValueError(f"was twice in {times.zone}; fix: say `times.twice`")
    return earlier if times.twice == "earlier" else later


def _csv_rows(file: Path, how: Csv) -> Generator[tuple[int, list[str]]]:
    """The header and each row, with the line it begins at. Raises BadSource."""
    quotes: Any = {"quotechar": how.quote} if how.quote else {"quoting": csv.QUOTE_NONE}
    first, empty = 1, 0
    try:
        with closing(_lines(file, how.encoding)) as lines:
            reader = csv.reader(lines, delimiter=how.separator, strict=True, **quotes)
            for row in reader:
                if reader.line_num > first and not how.line_breaks:
                    raise csv.Error(f"a quoted field goes on to line {reader.line_num}")
                if row and empty:
                    raise BadSource(f"{file}, line {empty}: empty; fix: remove it")
                if row:
                    yield first, row
                else:
                    empty = empty or first  # at the end of a file it means nothing
                first = reader.line_num + 1
    except csv.Error as error:
        fix = (
            "correct the line; `csv.quote` names other quotes than RFC 4180's, or none, `csv.line_breaks` allows those"
        )
        raise BadSource(f"{file}, line {first}: {error}; fix: {fix}") from None


def _lines(file: Path, encoding: str) -> Generator[str]:
    """Up to each LF: Python's own reader of CSV knows which CR before it is the line's end, and refuses others."""
    number = 0
    marked = "utf-8-sig" if encoding == "utf-8" else encoding  # a byte order mark repeats what is known
    with _opened(file) as binary, io.TextIOWrapper(binary, marked, newline="\n") as text:
        try:
            while line := text.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    raise BadSource(f"{file}, line {number}: longer than {_LONGEST_LINE:,} characters; fix: correct it")
                for lost, what in _LOST.items():
                    if lost in line:
                        raise BadSource(f"{file}, line {number}: {what}")
                for looks, what in _TEXTS.items() if number == 1 else ():
                    if looks.match(line):
                        raise BadSource(f"{file}: {what}")
                yield line
        except UnicodeError as error:
            read = error.object[: error.start] if isinstance(error, UnicodeDecodeError) else b""
            where = number + read.decode(encoding, "replace").count("\n") + 1
            fix = "name the file's encoding in `csv.encoding`"
            why = getattr(error, "reason", error)
            raise BadSource(f"{file}, line {where}: not {encoding}: {why}; fix: {fix}") from None
        except (EOFError, OSError, zlib.error) as error:
            raise BadSource(f"{file}, after line {number}: {error}; fix: copy it again, and whole") from None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Unpacked if its first bytes say gzip, whatever its suffix says."""
    with file.open("rb") as packed:
        if packed.peek(2)[:2] != _GZIP:
            yield packed
        else:
            with gzip.open(packed) as unpacked:
                yield unpacked


# Parquet


def _parquet_schema(file: Path, reading: Reading) -> tuple[pa.Schema, int]:
    """As Spark can have it, and the number of row groups."""
    if described := reading.csv.numbers.keys() | reading.times.formats.keys():
        raise BadSource(f"{file}: Parquet, whose columns have types; fix: remove {min(described)} from the mapping")
    with _parquet(file) as parquet:
        given, groups = parquet.schema_arrow, parquet.num_row_groups
    for field in given:
        if pa.types.is_decimal(field.type) and field.type.precision > _DIGITS:
            fix = f"write it with at most {_DIGITS}, or as text"
            raise BadSource(f"{file}: column {field.name} has {field.type.precision} digits; fix: {fix}")
        if pa.types.is_nested(field.type) and _LOCAL.search(str(field.type)) and reading.times.zone != "UTC":
            raise BadSource(f"{file}: {field.name} has local times within; fix: write them with an offset")
    return pa.schema([(field.name, _plain(field.type)) for field in given]), groups


@contextmanager
def _parquet(file: Path | str) -> Iterator[Any]:
    """Raises BadSource, also for pages that are not what their checksums, if they have any, are of."""
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise BadSource(f"{file}: broken Parquet: {error}; fix: copy it again, and whole") from None


def _plain(kind: Any) -> Any:
    """The type that Spark has for all values of `kind`, or `kind`. Local times of a column are instants: see Times."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_null(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind) and kind.precision <= _DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(each.name, _plain(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return _WIDER.get(kind, kind)


def _parquet_batches(split: FileSplit, schema: pa.Schema, reading: Reading) -> Iterator[pa.RecordBatch]:
    folders = dict(split.folders)
    with _parquet(split.file) as parquet:
        for batch in parquet.iter_batches(batch_size=10_000, row_groups=[split.group]):
            problems: list[list[_Problem]] = [[] for _ in range(batch.num_rows)]
            columns = [
                pa.array([folders[field.name]] * batch.num_rows, field.type)
                if field.name in folders
                else _column(split.file, field, batch.column(field.name), reading.times, problems)
                for field in list(schema)[:-1]
            ]
            yield pa.RecordBatch.from_arrays([*columns, pa.array(map(_joined, problems), _PROBLEM)], schema=schema)


def _column(file: str, field: pa.Field, values: Any, times: Times, problems: list[list[_Problem]]) -> Any:
    local = pa.types.is_timestamp(values.type) and values.type.tz is None and times.zone != "UTC"
    try:
        values.validate(full=True)  # text that is not UTF-8 would be mended by Java: two keys might become one
        if not local:
            return values.cast(field.type)
        return pa.array(_instants(field.name, values.cast(pa.timestamp("us")), times, problems), field.type)
    except pa.ArrowException as error:
        fix = "write the column as another type, or without those values"
        raise BadSource(f"{file}: column {field.name}: {error}; fix: {fix}") from None


def _instants(name: str, local: Any, times: Times, problems: list[list[_Problem]]) -> Iterable[datetime | None]:
    for value, its in zip(local, problems, strict=True):
        try:
            yield None if not value.is_valid else instant(value.as_py(), times)
        except (ValueError, OverflowError) as error:
            its.append(_Problem(name, str(error), value.cast(pa.string()).as_py()))
            yield None
