"""The doctor tells of calls that nobody makes, that fail, and that a person has to decide about; and what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from shared.dev import doctor, effects
from shared.dev.cli import cli
from shared.dev.stack import Stack
from shared.dev.worker import Worker, faust_command
from shared.doctor.finding import Finding
from shared.http.client import Client, path_of
from shared.operations.provision import provision
from shared.topology.effect import AttemptEffect, ExpireEffect, FailEffect, RequestEffect, SucceedEffect
from tests.doctor.patient import Patient
from tests.patterns.errands.effects import EFFECTS
from tests.patterns.errands.service import SERVICE

pytestmark = pytest.mark.broker

TOPOLOGY = SERVICE.topology


@pytest.fixture
def errands(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a worker. The test is its runner."""
    monkeypatch.setattr(doctor, "found_services", lambda having: [TOPOLOGY.service])
    for module in (doctor, effects):
        monkeypatch.setattr(module, "declared_by", lambda *_: EFFECTS)
    provision([TOPOLOGY], stack.settings)
    log = tmp_path / "errands.log"
    worker = Worker(TOPOLOGY.service, "1", stack.settings, log, lambda name: faust_command(name, "tests.patterns"))
    worker.start()
    yield worker.url
    worker.stop()


def typed(command: str) -> None:
    _, _, *words = shlex.split(command)
    done = CliRunner().invoke(cli, words)
    assert done.exception is None, done.output


@pytest.mark.long  # in short, the cures of tests/doctor
def test_effects_that_do_not_go_on_are_told_with_what_mends_that(errands: str, stack: Stack) -> None:
    patient = Patient(stack.settings, [TOPOLOGY], {TOPOLOGY.service: [errands]})
    repeats = AttemptEffect(attempt=1, repeats=True)
    with Client(errands) as service:

        def say(id_: str, verb: str, command: BaseModel, ago_s: float = 0.0) -> None:
            at = datetime.now(UTC) - timedelta(seconds=ago_s)
            service.send(path_of("/errands", id_) + verb, command, at=at)

        def fail(id_: str, *, final: bool) -> None:
            say(id_, "", RequestEffect(target="partner", body="{}"))
            say(id_, "/attempt", repeats)
            say(id_, "/fail", FailEffect(attempt=1, reason="503", at=datetime.now(UTC), final=final))

        def found() -> Finding:
            (finding,) = patient.findings("effect")
            return finding

        say("stale", "", RequestEffect(target="mail", body="late"), ago_s=90.0)
        stands = found()
        assert (stands.code, stands.cure) == ("effect.stands", "python3 dev.py effect run errands")
        assert "nobody calls mail" in stands.what
        say("stale", "/attempt", repeats)
        say("stale", "/succeed", SucceedEffect(attempt=1))
        assert patient.findings() == []

        fail("gone", final=True)
        stuck = found()
        assert (stuck.code, "the first is gone, after 1 attempts: 503" in stuck.evidence) == ("effect.stuck", True)
        typed(stuck.cure)
        assert patient.findings() == []

        say("once", "", RequestEffect(target="mail", body="once"))
        say("once", "/attempt", AttemptEffect(attempt=1, repeats=False))
        say("once", "/expire", ExpireEffect(attempt=1))
        lost = found()
        assert (lost.code, lost.cure.startswith("ask mail for once; if it has it, python3")) == ("effect.lost", True)
        typed(lost.cure.partition("if it has it, ")[2].partition("; ")[0])
        assert patient.findings() == []

        for number in range(5):
            fail(f"flaky-{number}", final=False)
        failing = found()
        assert (failing.code, "partner" in failing.cure) == ("effect.fails", True)
        assert "5 effects wait for another attempt, the first because of: 503" in failing.evidence
