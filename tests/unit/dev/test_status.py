"""`status` reports what it can when something is wrong, and what losing a broker would cost before it is lost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from shared.dev import cli, here, status
from shared.dev import up as local_stack
from shared.dev.asking import Silent
from shared.dev.processes import identify
from shared.dev.stages import StageFailed
from shared.dev.status import Line, next_loss
from shared.dev.verbs import looking
from shared.operations.provision import ProvisionError
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology
from tests.accounts.topology import TOPOLOGY

CLUSTER = Settings(replication=3, min_isr=2)


@pytest.mark.parametrize(
    ("in_sync", "told", "wrong"),
    [
        ([3, 3], "nothing", False),
        ([3, 2], "writes to 1 partitions until it is back; 1 partitions have fewer than 3 copies in sync", True),
        ([1, 2], "the records of 1 partitions, which have no second copy; 2 partitions have fewer than 3", True),
    ],
)
def test_three_brokers(in_sync: list[int], told: str, wrong: bool) -> None:
    line = next_loss(in_sync, CLUSTER)
    assert line.text.startswith(f"if one more broker fails: {told}")
    assert line.wrong == wrong


def test_one_broker_is_no_alarm_but_shown_as_unsafe() -> None:
    line = next_loss([1, 1], Settings())
    assert line.text == "if one more broker fails: the records of 2 partitions, which have no second copy"
    assert not line.wrong


A = "http://127.0.0.1:30001"
ADVERTISED = "http://3f0c9d:8000"  # what a container calls itself


def picture(lag_s: float | None = None, topic: str = "accounts.commands.v1") -> dict[str, Any]:
    """What /cluster says of one worker that owns one partition of two."""
    owned = {"partition": 0, "active": ADVERTISED, "restored": True, "to_restore": 0, "standbys": []}
    source = {"partition": 0, "active": ADVERTISED, "position": 5, "lag_records": 1, "lag_seconds": lag_s}
    member = {"url": ADVERTISED, "reachable": True, "instance": "1", "ready": True, "idle": False}
    counts = dict.fromkeys(("handled", "commits", "aborts", "waiting"), 0)
    return {
        **member,
        **counts,
        "service": "accounts",
        "owners": {},
        "replicas": [],
        "sources": [],
        "members": [member],
        "tables": {"accounts": [owned, owned | {"partition": 1, "active": None}]},
        "topics": {topic: [source]},
    }


def report_of(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, httpx.Response], *urls: str, topology: Topology = TOPOLOGY
) -> list[str]:
    """What `status` shows when these URLs give these answers, and neither other URLs nor brokers answer."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.get(str(request.url).partition("?")[0])
        if found is None:
            raise httpx.ConnectError("refused", request=request)
        return found

    def no_broker(*_: object) -> Any:
        raise ProvisionError("no broker answers")

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    monkeypatch.setattr(status, "found_topics", no_broker)
    return list(status.shown(status.status([topology], {"accounts": urls}, Settings())))


def test_a_failing_worker_is_a_line_and_the_next_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = {"detail": "this is a bug on our side"}
    answers = {
        "http://broken/cluster": httpx.Response(500, json=problem),
        f"{A}/cluster": httpx.Response(200, json=picture()),
        f"{A}/dead-letters": httpx.Response(200, json={"items": [], "cursor": None}),
    }
    lines = report_of(monkeypatch, answers, "http://broken", "http://dead", A)
    assert lines[0].startswith("! accounts     worker     http://broken/cluster says: this is a bug on our side; fix:")
    assert lines[1].split() == ["worker", ADVERTISED, "ready,", "partitions", "0"]
    assert "parked     nothing" in lines[4]  # asked at the URL that answered, not at the one for its peers


def test_a_partition_without_an_owner_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        f"{A}/cluster": httpx.Response(200, json=picture()),
        f"{A}/dead-letters": httpx.Response(503, json={"detail": "nobody owns partition 1 of parked"}),
    }
    lines = report_of(monkeypatch, answers, A)
    assert [line[:24].split() for line in lines] == [
        ["accounts", "worker"],
        ["!", "ownerless"],
        ["behind"],
        ["!", "parked"],
        ["!", "brokers", "topics"],
        ["retention"],
    ]
    assert "nobody owns partition 1 of parked" in lines[3]
    assert "no broker answers" in lines[4]


def test_a_version_that_another_acts_for_is_said_to_hold_back(monkeypatch: pytest.MonkeyPatch) -> None:
    said = picture()
    [source] = said["topics"]["accounts.commands.v1"]
    source |= {"lag_records": 0, "held_back": True}
    answers = {f"{A}/cluster": httpx.Response(200, json=said), f"{A}/dead-letters": httpx.Response(503, json={})}
    lines = report_of(monkeypatch, answers, A)
    assert "behind     nothing waits" in lines[2]
    assert "shadows    partitions 0: another version acts there, and this one holds back" in lines[3]


@pytest.mark.parametrize(
    ("urls", "told"),
    [
        (None, "unknown; fix: name one with --url accounts=URL, or `python3 dev.py up`"),
        ([], "none answers: its records wait"),
        (["http://dead", "http://gone"], "none answers at http://dead, http://gone: its records wait"),
    ],
)
def test_a_worker_that_nobody_named_is_not_called_silent(
    urls: list[str] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`worker SERVICE` in another terminal, or a worker elsewhere, is known by its URL only."""

    def silent(url: str) -> Any:
        raise Silent(f"{url} does not answer", "check that it runs")

    monkeypatch.setattr(status, "ask", silent)
    assert [(line.text, line.wrong) for line in status._asked("accounts", urls).refusals] == [(told, True)]


@pytest.mark.parametrize(("lag_s", "told"), [(2.04, "1 of accounts.commands.v1, for 2.0 s"), (None, "commands.v1")])
def test_an_unknown_age_is_not_called_young(lag_s: float | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = report_of(monkeypatch, {f"{A}/cluster": httpx.Response(200, json=picture(lag_s))}, A)
    assert next(line for line in lines if "behind" in line).endswith(told)


BRIEF = Topology("accounts", topics=(Topic("accounts.timers.v1", retention_ms=60_000),))


@pytest.mark.parametrize(
    ("lag_s", "told"),
    [
        (0.2, "no topic"),
        (None, "no topic; unknown of accounts.timers.v1/0, where no record was handled yet"),
        (29.0, "no topic"),
        (31.0, "accounts.timers.v1/0 in 29 s"),
        (61.0, "accounts.timers.v1/0 in 0 s"),
    ],
)
def test_retention_is_an_alarm_when_half_of_it_is_used_up(
    monkeypatch: pytest.MonkeyPatch, lag_s: float | None, told: str
) -> None:
    answers = {f"{A}/cluster": httpx.Response(200, json=picture(lag_s, "accounts.timers.v1"))}
    *_, line = report_of(monkeypatch, answers, A, topology=BRIEF)
    assert line.startswith("!") == (not told.startswith("no topic"))
    assert line.endswith(f" of {told}")


def test_unknown_retention_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, line = report_of(monkeypatch, {}, A, topology=BRIEF)
    assert line.startswith("!")
    assert line.endswith("about to remove unread records of no topic; unknown for accounts, where no worker answers")


@pytest.mark.parametrize("wrong", [False, True])
def test_status_with_an_alarm_exits_with_1(monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    monkeypatch.setattr(looking, "status", lambda *_: {"brokers": [Line("topics", "as found", wrong)]})
    run = CliRunner().invoke(cli.cli, ["status"], env={"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"})
    assert (run.exit_code, run.output.startswith("!")) == (int(wrong), wrong)


@pytest.mark.parametrize(("bootstrap", "asked"), [(None, {"accounts": [A]}), ("prod-1:9092", {})])
def test_workers_of_up_are_not_shown_as_those_of_other_brokers(
    bootstrap: str | None, asked: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**dict.fromkeys(here.OF_UP, "1"), "ONEFOLD_BOOTSTRAP": "127.0.0.1:1"}
    found = local_stack.Record(identify(os.getpid()), (), settings, {"accounts": [{"url": A, "pid": 1}]})
    monkeypatch.setattr(local_stack, "running", lambda _: found)
    for name in here.OF_UP:  # so that what the verb sets is undone after the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    shown: dict[str, Any] = {}

    def note(_: object, workers: Mapping[str, Any], __: object) -> status.Report:
        shown.update(workers)
        return {}

    monkeypatch.setattr(looking, "status", note)
    run = CliRunner().invoke(cli.cli, ["status"], env={"ONEFOLD_BOOTSTRAP": bootstrap})
    assert (run.exit_code, shown) == (0, asked)


@pytest.mark.parametrize("named", ["http://host:8000", "acounts=http://host:8000", "accounts="])
@pytest.mark.usefixtures("known")
def test_a_url_that_belongs_to_no_service_is_refused(named: str) -> None:
    error = CliRunner().invoke(cli.cli, ["status", "--url", named], env={"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"}).exception
    assert isinstance(error, StageFailed)
    assert "say SERVICE=URL, of one of: accounts" in error.fix
