"""`doctor` says what is wrong, what it could not see, and how bad it is by its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from shared.dev import cli, doctor, here
from shared.doctor.snapshot import Snapshot
from tests.accounts.topology import EVENTS
from tests.unit.doctor.healthy import HEALTHY, A, changed, told

CLUSTER = told()["accounts"].cluster.model_dump(mode="json")


def run(
    monkeypatch: pytest.MonkeyPatch, seen: Snapshot, *arguments: str, workers: bool = True, letters: int = 200
) -> Result:
    """What it says of a system whose brokers look like `seen`, and whose worker answers at A."""

    def answer(request: httpx.Request) -> httpx.Response:
        if not workers:
            raise httpx.ConnectError("refused", request=request)
        page: dict[str, Any] = {"items": [], "cursor": None}
        is_cluster = request.url.path == "/cluster"
        return httpx.Response(200, json=CLUSTER) if is_cluster else httpx.Response(letters, json=page)

    def look(_: object, __: object, told: Any) -> Snapshot:
        return replace(seen, told=told)

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    monkeypatch.setattr(doctor, "look", look)
    monkeypatch.setattr(here, "load_topologies", lambda: HEALTHY.topologies)
    return CliRunner().invoke(cli.cli, ["doctor", *arguments], env={"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"})


WORKER = ("--url", f"accounts={A}")


def test_of_a_healthy_system_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(monkeypatch, HEALTHY, *WORKER)
    assert (ran.exit_code, ran.output) == (0, "")


def test_a_finding_has_four_lines_and_a_program_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ill = changed(EVENTS.name, min_insync_replicas="1")
    ran = run(monkeypatch, ill, *WORKER)
    assert ran.exit_code == 5
    what, found, why, cure = ran.output.splitlines()
    assert what == "URGENT  accounts.events.v1 is not as declared"
    assert found == "    found  min.insync.replicas is 1, declared as 2"
    assert why.startswith("    why    an answered write may have 1 copies in all")
    read = json.loads(run(monkeypatch, ill, *WORKER, "--json").output)
    (finding,) = read["findings"]
    assert (finding["severity"], finding["code"], read["unseen"]) == ("urgent", "topic.setting", [])
    assert cure == f"    cure   {finding['cure']}"


@pytest.mark.parametrize(
    ("setting", "exit_code"), [({"retention_ms": "-1"}, 3), ({"message_timestamp_type": "CreateTime"}, 4)]
)
def test_what_is_less_bad_has_a_lower_exit_code(
    setting: dict[str, str], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(monkeypatch, changed("accounts-accounts-outcomes-changelog", **setting), *WORKER)
    assert ran.exit_code == exit_code


@pytest.mark.parametrize(
    ("arguments", "why"), [((), "name one with --url accounts=URL"), (WORKER, "does not answer: refused; fix: check")]
)
def test_workers_that_could_not_be_asked_are_no_clean_bill(
    arguments: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(monkeypatch, HEALTHY, *arguments, workers=False)
    assert ran.exit_code == 1
    assert ran.output.startswith("unseen  the workers of accounts: ")
    assert why in ran.output


def test_parked_records_that_cannot_be_listed_now_hide_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(monkeypatch, HEALTHY, *WORKER, letters=503)
    assert ran.exit_code == 1
    assert ran.output.startswith("unseen  what is parked in accounts: http://a/dead-letters")
