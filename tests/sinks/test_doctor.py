"""The doctor knows a sink whose process is gone, and its cure starts another; and one that waits, with the reason."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.doctor.finding import Finding
from shared.runtime.settings import Settings
from tests.accounts.topology import TOPOLOGY
from tests.doctor.patient import FOUND_S, MENDED_S, Patient
from tests.doctor.test_cures import going
from tests.sinks.outside import LEASE_S, Log, SinkProcess
from tests.sinks.test_cli import RUN
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def test_a_sink_that_was_killed_is_told_and_started(log: Log, bootstrap: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sinks.sqlite3'}"
    settings = Settings(bootstrap=bootstrap, data_dir=tmp_path, sink_database=SecretStr(url), session_timeout_s=LEASE_S)
    patient = Patient(settings, [TOPOLOGY])

    def found() -> list[Finding]:
        return patient.findings("sink")

    process = SinkProcess("one", tmp_path, bootstrap, url, RUN)
    log.write(10)
    assert found() == []  # nobody has begun it
    process.start()
    eventually(lambda: "a sink is filled" in process.said())
    process.kill()
    log.write(10)
    cures = eventually(lambda: [each.cure for each in found() if each.code == "sink.stands"], deadline_s=FOUND_S)
    assert cures == ["python3 dev.py sink run accounts"]
    with going(cures[0], patient.environment, tmp_path / "cure.log"):
        eventually(found, lambda left: left == [], MENDED_S)
        with refusing(tmp_path / "sinks.sqlite3"):
            log.write(10)
            (waits,) = eventually(found, deadline_s=FOUND_S)
            assert waits.code == "sink.waits"
            assert "the database refuses it: IntegrityError" in waits.evidence
        eventually(found, lambda left: left == [], MENDED_S)


@contextmanager
def refusing(file: Path) -> Iterator[None]:
    """The database takes no row meanwhile."""
    with closing(sqlite3.connect(file, timeout=30.0)) as database:
        database.execute("CREATE TRIGGER no BEFORE INSERT ON accounts_v1 BEGIN SELECT RAISE(ABORT, 'no'); END")
        yield
        database.execute("DROP TRIGGER no")
