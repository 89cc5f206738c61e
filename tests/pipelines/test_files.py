"""A file is read as what it says it is, or refused with line and fix: nothing is guessed, merged or left out."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc
from pydantic import ValidationError

from pipelines.files import PROBLEM, BadSource, Csv, Reading, Times, find

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rows(source: Path, **reading: Any) -> list[dict[str, Any]]:
    found = find(str(source), Reading(**reading))
    return [row for part in found.splits for batch in found.read(part) for row in batch.to_pylist()]


def told(source: Path, **reading: Any) -> str:
    """Why it is refused, in one line that says how it is mended."""
    with pytest.raises(BadSource) as refused:
        rows(source, **reading)
    text = str(refused.value)
    assert text.startswith(str(source))
    assert "\n" not in text
    assert "; fix: " in text
    return text.removeprefix(str(source))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sales.csv"


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"who,cents\nK\xf6ln,100\nK\xe4ln,200\n", ", line 2: not utf-8"),
        (b"who,note\n" + b"x" * 20_000 + b",\n" * 2 + b"K\xf6ln,\n", ", line 4: not utf-8"),
        ("who,cents\nK\ufffdln,100\n".encode(), ", line 2: U+FFFD"),
        ("who,cents\nann,1\n".encode("utf-16"), ", line 1: not utf-8"),
        ("who,cents\nann,1\n".encode("utf-16-le"), ", line 1: a NUL byte"),
        (b"\xef\xbb\xbfwho\nann\n" + b"\xef\xbb\xbfbob\n", ", line 3: a byte order mark within the file"),
        ("who\nann\nbob\n".encode("utf-8-sig") * 2, ", line 4: a byte order mark within the file"),
        (b"who,cents\nann,1\0\n", ", line 2: a NUL byte"),
        (b'who,cents,note\nann,1,"5 inch\nbob,2,\neve,3,\n', ", line 2: "),
        (b'who,cents,note\nann,1,"5 inch\nbob,2,6 inch"\neve,3,\n', ", line 2: a quoted field goes on to line 3"),
        (b'who,cents,note\nann,1,"5 inch\nbob,2,"wide"\n', ", line 2: "),
        (b'who,note\nann,"said \\"hi\\""\n', ", line 2: "),
        (b"who,cents\nann,1\rbob,2\n", ", line 2: new-line character"),
        (b"who,cents\nann,1,234.50\n", ", line 2: 3 fields, and 2 in the header"),
        (b"who,cents\nann,1\nbob\n", ", line 3: 1 fields, and 2 in the header"),
        (b"who,cents\nann,1\n\nbob,2\n", ", line 3: empty"),
        (b"", ": empty, without a header"),
        (b"\nwho,cents\nann,1\n", ", line 1: empty"),
        (b"who,cents,who\nann,1,bob\n", ": two columns, who and who, are one to SQL"),
        (b"who,cents,Who\nann,1,bob\n", ": two columns, who and Who, are one to SQL"),
        (b"who,cents,\nann,1,\n", ": column 3 is named ''"),
        (b'who,"cents\n(net)"\nann,1\n', ", line 1: a quoted field goes on to line 2"),
        (b"who,__problem\nann,1\n", ": two columns, backfill's own and __problem"),
        (b"who,note\nann," + b"x" * 200_000 + b"\n", ", line 2: field larger than field limit"),
        (b"who\n" + b"x" * 1_100_000, ", line 2: longer than 1,048,576 characters"),
        (b"PK\x03\x04 sheet1.xml", ": a ZIP archive or an Excel workbook"),
        (b"\xd0\xcf\x11\xe0 sheet", ": an Excel workbook"),
        (gzip.compress(b"who,cents\nann,1\n", mtime=0)[:-9], ", after line "),
        (gzip.compress(b"who,cents\nann,1\n", mtime=0) + b"more", ", after line "),
        (b"PAR1 and no more", ": broken Parquet"),
        (b"BZh91AY&SY", ": packed by bzip2; fix: unpack it"),
        (b"\x04\x22\x4d\x18d@", ": packed by lz4; fix: unpack it"),
        (b"%PDF-1.7\n", ": a PDF; fix: get its rows as CSV"),
        (b"Obj\x01\x04", ": Avro; fix: write it as Parquet"),
        (b"SQLite format 3\0", ": a database of SQLite; fix: export its table as CSV"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", ": a pointer of Git LFS, without the file"),
        (b"sales.csv".ljust(257, b"\0") + b"ustar", ": an archive of tar; fix: unpack it"),
        (gzip.compress(b"sales.csv".ljust(257, b"\0") + b"ustar", mtime=0), ": an archive of tar; fix: unpack it"),
        (gzip.compress(b"PAR1 and more", mtime=0), ": Parquet, packed by gzip; fix: unpack it"),
        (gzip.compress(gzip.compress(b"who\nann\n", mtime=0), mtime=0), ": gzip, packed by gzip; fix: unpack it"),
        (b'{"who": "ann"}\n{"who": "bob"}\n', ": JSON; fix: write it as CSV with a header, or as Parquet"),
        (b'{"who": "ann", "cents": 1}\n', ": JSON"),
        (b'\xef\xbb\xbf[\n{"who": "ann"}\n]\n', ": JSON"),
        (b'[{"who": "ann"}, {"who": "bob"}]', ": JSON"),
        (b"{\n", ": JSON"),
        (gzip.compress(b'{"who": "ann"}\n', mtime=0), ": JSON"),
        (b"<!DOCTYPE html>\n<table>\n", ": HTML or XML; fix: save it as CSV"),
        (b'  <?xml version="1.0"?>\n', ": HTML or XML"),
        (b'<html xmlns:o="office"\nxmlns="html">\n', ": HTML or XML"),
        (b'<table border="1"><tr><td>who</td></tr></table>', ": HTML or XML"),
        (b"<rows>\r\n<row/>\r\n", ": HTML or XML"),
    ],
)
def test_what_says_two_things_is_refused_with_line_and_fix(content: bytes, refusal: str, file: Path) -> None:
    file.write_bytes(content)
    assert told(file).startswith(refusal)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"who,note\nann,paid\n", "paid"),
        (b"\xef\xbb\xbfwho,note\nann,paid\n", "paid"),
        (b"who,note\r\nann,paid\r\n", "paid"),
        (b"who,note\nann,paid\r\n", "paid"),  # the header of a tool, above the rows of another
        (b"who,note\nann,paid", "paid"),
        (b"who,note\nann,paid\n\n\n", "paid"),
        (b'who,note\nann,"said ""hi"", \\"\n', 'said "hi", \\'),
        (b"who,note\nann, paid \n", " paid "),
        (b'who,note\nann,5" pipe\n', '5" pipe'),
        (b'who,note\nann,""\n', None),
        (b"who,note\nann,NULL\n", "NULL"),
        (gzip.compress(b"who,note\nann,paid\n", mtime=0), "paid"),
    ],
)
def test_what_is_clear_is_read_as_it_stands(content: bytes, note: str | None, file: Path) -> None:
    file.write_bytes(content)
    assert rows(file) == [{"who": "ann", "note": note, PROBLEM: None}]


def test_what_is_no_csv_is_known_by_what_tools_write(tmp_path: Path) -> None:
    table = pa.table({"who": ["ann"]})
    orc.write_table(table, tmp_path / "sales.orc")
    feather.write_feather(table, tmp_path / "sales.feather")
    assert told(tmp_path / "sales.orc") == ": ORC; fix: write it as Parquet"
    assert told(tmp_path / "sales.feather") == ": Arrow, or Feather; fix: write it as Parquet"


@pytest.mark.parametrize("name", ["ORCID", "<TICKER>,<CLOSE>", "<DATE>;<TIME>", "[id],[name]", "{id}", "BZ", "SEQ"])
def test_a_header_may_look_like_something_else(name: str, file: Path) -> None:
    file.write_text(f"{name}\n{name}\n")
    (row,) = rows(file)
    assert ",".join(column for column in row if column != PROBLEM) == name


def test_how_csv_is_written_can_be_named(file: Path) -> None:
    file.write_bytes("Kunde;Betrag;Notiz\r\nKöln;1.234,50;'zwei\nZeilen'\r\nKäln;-7;\r\n".encode("cp1252"))
    how = Csv(encoding="cp1252", separator=";", quote="'", line_breaks=True, decimal=",", thousands=".")
    named = how.model_copy(update={"numbers": {"Betrag": 2}})
    assert [tuple(row.values()) for row in rows(file, csv=named)] == [
        ("Köln", Decimal("1234.50"), "zwei\nZeilen", None),
        ("Käln", Decimal("-7.00"), None, None),
    ]
    file.write_bytes('size\tnote\n5"\t"\n'.encode("utf-16"))
    assert rows(file, csv=Csv(encoding="UTF-16", separator="\t", quote="")) == [
        {"size": '5"', "note": '"', PROBLEM: None}
    ]
    file.write_bytes(b"who\nK\xf6ln\n")
    assert told(file, csv=Csv(encoding="punycode")).startswith(", line 1: not punycode")
    file.write_bytes(b'"cents\n(net)",who\n1,ann\n')
    assert "column 1 is named 'cents\\n(net)'" in told(file, csv=Csv(line_breaks=True))


@pytest.mark.parametrize(
    "text",
    ["1e3", "NaN", "Infinity", "1,234.50", "1.005", "1.", ".5", " 1", "0x1F", "١", "$5", "(5)", "1_000", "9" * 37],
)
def test_a_text_that_is_not_exactly_such_a_number_is_a_problem_of_its_row(text: str, file: Path) -> None:
    file.write_text(f'who,dollars\nann,"{text}"\nbob,1.5\neve,\n')
    ann, bob, eve = rows(file, csv=Csv(numbers={"dollars": 2}))
    assert ann["dollars"] is None
    assert re.match("dollars: (no number with at most 2|more than 36) digits", ann[PROBLEM]["why"])
    assert ann[PROBLEM]["texts"] == [("dollars", text)]
    assert (bob["dollars"], bob[PROBLEM]) == (Decimal("1.50"), None)
    assert (eve["dollars"], eve[PROBLEM]) == (None, None)


@pytest.mark.parametrize(("digits", "text"), [(0, "9" * 38), (2, "9" * 36), (2, f"{'9' * 36}.99"), (37, "9")])
def test_a_number_may_have_as_many_digits_as_a_decimal(digits: int, text: str, file: Path) -> None:
    file.write_text(f"dollars\n{text}\n")
    assert rows(file, csv=Csv(numbers={"dollars": digits})) == [{"dollars": Decimal(text), PROBLEM: None}]


def test_all_that_is_wrong_with_a_row_is_told_with_its_texts(file: Path) -> None:
    file.write_text("who,dollars,cents,at\nann,n/a,1.5,today\n")
    (row,) = rows(file, csv=Csv(numbers={"dollars": 2, "cents": 0}), times=Times(formats={"at": "%Y-%m-%d"}))
    number, whole = (f"no number with at most {digits} digits behind the '.'" for digits in (2, 0))
    assert row[PROBLEM] == {
        "why": f"dollars: {number}, and cents: {whole}, and at: no time as '%Y-%m-%d' has it",
        "texts": [("dollars", "n/a"), ("cents", "1.5"), ("at", "today")],
    }


@pytest.mark.parametrize(
    ("text", "twice", "instant"),
    [
        ("01.01.2026 13:00", None, "2026-01-01 12:00"),
        ("01.07.2026 13:00", None, "2026-07-01 11:00"),
        ("29.03.2026 02:30", "earlier", "was skipped by the clocks of Europe/Berlin"),
        ("25.10.2026 02:30", None, "was twice in Europe/Berlin; fix: say `times.twice`"),
        ("25.10.2026 02:30", "earlier", "2026-10-25 00:30"),
        ("25.10.2026 02:30", "later", "2026-10-25 01:30"),
        ("30.02.2026 12:00", None, "no time as '%d.%m.%Y %H:%M' has it"),
        ("2026-01-01", None, "no time as '%d.%m.%Y %H:%M' has it"),
        ("01.01.2026 13:00:59", None, "no time as '%d.%m.%Y %H:%M' has it"),
        ("01.01.0001 00:30", None, "date value out of range"),
    ],
)
def test_a_local_time_is_an_instant_of_its_zone_or_a_problem_of_its_row(
    text: str, twice: Any, instant: str, tmp_path: Path
) -> None:
    file = tmp_path / "sales.csv"
    file.write_text(f"at\n{text}\n")
    times = Times(zone="Europe/Berlin", twice=twice, formats={"at": "%d.%m.%Y %H:%M"})
    (row,) = rows(file, times=times)
    problem = row[PROBLEM]
    assert instant in (problem["why"] if problem else f"{row['at']:%Y-%m-%d %H:%M}")
    assert problem is None or problem["texts"] == [("at", text)]
    if text.startswith("2") and "." in text and text[3:5] != "02":  # the same in Parquet, whose times are no text
        file, at = tmp_path / "sales.parquet", datetime.strptime(text, "%d.%m.%Y %H:%M")  # noqa: DTZ007
        pq.write_table(pa.table({"at": [at]}), file)
        (its,) = rows(file, times=times.model_copy(update={"formats": {}}))
        assert its["at"] == row["at"]
        assert not problem or its[PROBLEM] == problem | {"texts": [("at", f"{at}.000000")]}


@pytest.mark.parametrize(
    ("format_", "text", "instant"),
    [
        ("%d%m%Y", "01022026", "2026-02-01 00:00"),
        ("%d%m%Y", "1022026", None),
        ("%Y%m%d", "2026111", None),
        ("%Y%m%d", "09990101", "0999-01-01 00:00"),
        ("%Y-%m-%d %H%M", "2013-01-01 105", None),
        ("%Y-%m-%d %H%M", "2001-1-1  0201", "2001-01-01 02:01"),
        ("%Y-%m-%d %H%M", "2001-1-1 201", None),
        ("%d%m%Y %I%M%p", "01022026 0105pm", "2026-02-01 13:05"),
        ("%Y%m%d%H%M%S%f", "20260101123456789", "2026-01-01 12:34:56.789"),
        ("%Y%m%d%H%M%S%f", "202611123456789", None),
        ("%Y%m%dT%H%M%S%z", "20260101T130000+01:00", "2026-01-01 12:00"),
        ("%Y%m%dT%H%M%S%z", "20260101T13000Z", None),
        ("%Y%j", "2026032", "2026-02-01 00:00"),
        ("%GW%V%u", "2026W014", "2026-01-01 00:00"),
        ("%d%b%Y", "1JAN2026", "2026-01-01 00:00"),
        ("%d.%m.%Y", "1.2.2026", "2026-02-01 00:00"),
    ],
)
def test_digits_are_told_apart_by_their_zeros_where_nothing_is_between(
    format_: str, text: str, instant: str | None, file: Path
) -> None:
    file.write_text(f"at\n{text}\n")
    (row,) = rows(file, times=Times(formats={"at": format_}))
    assert row["at"] == (datetime.fromisoformat(f"{instant}Z") if instant else None)
    assert (row[PROBLEM] or {}).get("why") == (None if instant else f"at: no time as {format_!r} has it")


@pytest.mark.parametrize(
    ("format_", "refusal"),
    [
        ("%Y-%m-%d %H:%M %Z", "a zone's name is left unread; fix: %z for an offset or Z, or `times.zone`"),
        ("%Y-%m-%dT%H:%M:%SZ", "a zone's name is left unread"),
        ("%d.%m.%y", "the century of a year is left open; fix: "),
        ("%x", "the century of a year is left open"),
        ("%d.%m.", "not every part of a time is in it, or one is left unread; fix: "),
        ("%H:%M", "not every part of a time"),
        ("%Y-%m", "not every part of a time"),
        ("%Y-%m-%d %I:%M", "not every part of a time"),
        ("%Y-%m-%d %p", "not every part of a time"),
        ("%Y-%m-%d %M:%S", "not every part of a time"),
        ("%Y week %U", "not every part of a time"),
        ("%Y-%m-%d %q", "'q' is a bad directive"),
        ("%Y-%m-%d %", "stray %"),
        ("%Y-%m-%d %d", "redefinition of group name 'd'"),
        ("", "not every part of a time"),
    ],
)
def test_a_format_that_leaves_something_to_be_guessed_is_refused(format_: str, refusal: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Times(formats={"at": format_})
    assert f"at: {format_!r}: {refusal}" in str(refused.value)
    assert "; fix: " in str(refused.value)


@pytest.mark.parametrize(
    "format_",
    [
        "%Y%m%d",
        "%d.%m.%Y %H",
        "%d.%m.%Y %H:%M",
        "%Y-%m-%dT%H:%M:%S.%f%z",
        "%m/%d/%Y %I:%M %p",
        "%a, %d %b %Y %H:%M:%S %z",
        "%G-W%V-%u",
        "%Y-%j",
        "%Y %U %w",
        "%c",
        "%Y-%m-%d 100%%",
    ],
)
def test_a_format_that_says_the_day_and_what_it_says_of_the_time_is_taken(format_: str) -> None:
    assert Times(formats={"at": format_}).formats == {"at": format_}


def test_the_files_of_a_folder_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,cents,points\nann,1,2\n")
    (tmp_path / "b [2026] *.csv").write_text("who,points,cents\nbob,3,4\n")
    (tmp_path / "day=2026-01-01").mkdir()
    for no_data in ("_SUCCESS", ".a.csv.crc", "_temporary/0/c.csv"):
        (tmp_path / no_data).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / no_data).write_text("?")
    assert [(row["who"], row["cents"], row["points"]) for row in rows(tmp_path)] == [
        ("ann", "1", "2"),
        ("bob", "4", "3"),
    ]
    assert len(rows(tmp_path / "b [2026] *.csv")) == 1
    for content, refusal in [
        ("who,cents\n", "column points is none, and string in "),
        ("who,cents,points,more\n", "column more is string, and none in "),
        ("who,Cents,points\n", "column Cents is string, and none in "),
        ("", "empty, without a header"),
    ]:
        (tmp_path / "c.csv").write_text(content)
        assert f"c.csv: {refusal}" in told(tmp_path)
    (tmp_path / "c.csv").unlink()
    pq.write_table(pa.table({"who": ["eve"], "cents": [5], "points": [6]}), tmp_path / "d")
    assert "column cents is int64, and string in " in told(tmp_path)


def test_what_the_names_of_folders_tell_is_text_of_each_row(tmp_path: Path) -> None:
    for number, folder in enumerate(("shop=007", "shop=a%2Fb", "shop=__HIVE_DEFAULT_PARTITION__")):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"cents": [number]}), tmp_path / folder / "part-0")
    assert [(row["cents"], row["shop"]) for row in rows(tmp_path)] == [(0, "007"), (2, None), (1, "a/b")]


@pytest.mark.parametrize("header", ["day,who", "who,day"])
def test_a_column_is_in_all_files_of_a_folder_or_in_all_names_of_its_folders(header: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,2\n")
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=2" / "b.csv").write_text("who\nann\n")
    a, fix = tmp_path / "a.csv", "; fix: load them one by one"
    assert told(tmp_path) == f"/day=2/b.csv: column day is a folder's name, and string in {a}{fix}"
    (tmp_path / "a.csv").rename(tmp_path / "z.csv")
    assert told(tmp_path).startswith("/z.csv: column day is string, and a folder's name in ")


@pytest.mark.parametrize(
    ("table", "mark"), [("Delta", "_delta_log/0.json"), ("Hudi", ".hoodie/x"), ("Iceberg", "metadata/v1.metadata.json")]
)
def test_files_of_a_table_that_are_partly_of_its_past_are_refused(table: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / "day=1" / "more").mkdir(parents=True)
    (tmp_path / "day=1" / "more" / "sales.csv").write_text("who\nann\n")
    (tmp_path / mark).parent.mkdir()
    (tmp_path / mark).write_text("{}")
    for folder in (tmp_path, tmp_path / "day=1"):
        assert told(folder).startswith(f": a table of {table}")
    assert len(rows(tmp_path / "day=1" / "more" / "sales.csv")) == 1


def test_what_cannot_be_read_as_a_file_of_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.csv").write_text("who\nbob\n")
    folder = tmp_path / "sales"
    folder.mkdir()
    (folder / "a.csv").symlink_to(tmp_path / "elsewhere" / "b.csv")
    (folder / ".hidden").symlink_to(tmp_path / "nowhere")
    (tmp_path / "linked").symlink_to(folder)
    assert [row["who"] for row in rows(tmp_path / "linked")] == ["bob"]
    for target in ("elsewhere", "nowhere"):
        (folder / "c").symlink_to(tmp_path / target)
        assert told(folder).startswith("/c: a link to a folder, or to nothing")
        (folder / "c").unlink()


def test_a_copy_of_a_file_is_refused_unless_it_has_no_rows_or_another_day(tmp_path: Path) -> None:
    files = ("1", "a", "ann,1"), ("2", "a", "ann,1"), ("2", "b", "bob,1"), ("1", "c", ""), ("1", "d", "")
    for day, name, rows in files:
        (tmp_path / f"day={day}").mkdir(exist_ok=True)
        (tmp_path / f"day={day}" / f"{name}.csv").write_text(f"customer,cents\n{rows}")
    assert len(find(str(tmp_path)).splits) == 3
    (tmp_path / "day=1" / "a (1).csv").write_text("customer,cents\nann,1")
    with pytest.raises(BadSource, match=r"a\.csv: the same bytes as .*a \(1\)\.csv; fix: remove one of them"):
        find(str(tmp_path))


def test_a_source_without_files_is_refused(tmp_path: Path) -> None:
    assert "no files are in it" in told(tmp_path)
    (tmp_path / "sales-1.csv").write_text("who\nann\n")
    assert "no such file or folder" in told(tmp_path / "sales-*.csv")


def test_parquet_is_read_with_the_values_it_has(tmp_path: Path) -> None:
    file = tmp_path / "no suffix"
    nanos = pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns"))
    table = {
        "at": nanos,
        "ordered": nanos.cast(pa.timestamp("ms")),
        "sent": pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")),
        "of": pa.array(["web"]).dictionary_encode(),
        "nothing": pa.nulls(1),
        "units": pa.array([2**64 - 1], pa.uint64()),
        "lines": pa.array([[{"sku": "a", "at": NOON.replace(tzinfo=None)}]]).cast(
            pa.large_list(pa.struct([("sku", pa.large_string()), ("at", pa.timestamp("ns"))]))
        ),
        "day": pa.array([datetime(1200, 2, 28).date()]),  # noqa: DTZ001
    }
    pq.write_table(pa.table(table), file)
    assert rows(file) == [
        {
            "at": NOON,
            "ordered": NOON,
            "sent": NOON,
            "of": "web",
            "nothing": None,
            "units": Decimal(2**64 - 1),
            "lines": [{"sku": "a", "at": NOON}],
            "day": datetime(1200, 2, 28).date(),  # noqa: DTZ001
            PROBLEM: None,
        }
    ]
    assert "lines has local times within" in told(file, times=Times(zone="Europe/Berlin"))
    assert "remove units from the mapping" in told(file, csv=Csv(numbers={"units": 2}))
    pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("ns"))}), file)
    assert "column at: " in told(file)
    pq.write_table(pa.table({"cents": pa.array([Decimal(10) ** 38], pa.decimal256(39, 0))}), file)
    assert ": column cents has 39 digits; fix: " in told(file)
    for at in (NOON, datetime(1500, 1, 1, 12, tzinfo=UTC)):  # of the older, nanoseconds would be of 2084
        pq.write_table(pa.table({"at": [at.replace(tzinfo=None)]}), file, use_deprecated_int96_timestamps=True)
        if at == NOON:
            assert rows(file) == [{"at": NOON, PROBLEM: None}]
    assert "column at: " in told(file)
    pq.write_table(pa.table({"who": pa.array([b"K\xf6ln"]).view(pa.string())}), file)
    assert "column who: " in told(file)
    pq.write_table(pa.table({"at": nanos, "AT": nanos}), file)
    assert "two columns, at and AT, are one to SQL" in told(file)


@pytest.mark.parametrize(
    ("names", "how"),
    [
        (False, {"compression": "snappy"}),
        (True, {"compression": "none"}),
        (False, {"compression": "none", "write_page_checksum": True}),
    ],
)
def test_parquet_whose_pages_are_damaged_is_refused(names: bool, how: dict[str, Any], file: Path) -> None:
    values = [f"name {n}" for n in range(1000)] if names else list(range(1000))
    pq.write_table(pa.table({"who": values}), file, use_dictionary=False, **how)
    content = bytearray(file.read_bytes())
    content[400:420] = b"\xff" * 20
    file.write_bytes(content)
    find(str(file))
    assert told(file).startswith(": broken Parquet: ")


@pytest.mark.parametrize("parquet", [False, True])
def test_a_file_that_changed_since_it_was_checked_is_refused(parquet: bool, file: Path) -> None:
    def write(who: str) -> None:
        if parquet:
            pq.write_table(pa.table({"who": [who] * 30_000}), file)
        else:
            file.write_text("who\n" + f"{who}\n" * 30_000)

    write("ann")
    found = find(str(file))
    changed = f"{re.escape(str(file))}: changed since it was checked; fix: "
    reading = found.read(found.splits[0])
    next(reading)
    file.touch()
    with pytest.raises(BadSource, match=changed):
        list(reading)
    write("bob")
    with pytest.raises(BadSource, match=changed):
        next(found.read(found.splits[0]))
    assert {row["who"] for row in rows(file)} == {"bob"}


def test_a_column_that_the_mapping_describes_has_to_be_there(file: Path) -> None:
    file.write_text("who\nann\n")
    assert "no column cents, which the mapping describes" in told(file, csv=Csv(numbers={"cents": 0}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"csv": {"encoding": "klingon"}},
        {"csv": {"encoding": "rot13"}},
        {"csv": {"separator": "||"}},
        {"csv": {"separator": '"'}},
        {"csv": {"decimal": ",", "thousands": ","}},
        {"csv": {"numbers": {"cents": 39}}},
        {"csv": {"seperator": ";"}},
        {"times": {"zone": "Europe/Colonia"}},
        {"times": {"twice": "both"}},
    ],
)
def test_what_nothing_can_be_read_as_is_no_mapping(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Reading.model_validate(wrong)
