"""The consistency check passes correct rows, and names the key of a wrong one and the event where they differ."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from pydantic_core import from_json, to_json
from typer.testing import CliRunner

from pipelines import answers, consistency, served
from pipelines.catalog import Version, table_of
from pipelines.cli import cli, main
from pipelines.divergence import Record
from services.accounts.domain.commands import Charge, CloseAccount, OpenAccount, Pay
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountOpened
from shared.dev.stack import Stack
from shared.domain.decider import fold
from shared.kafka import brokers
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from tests.pipelines.conftest import PARTITIONS

PATHS = b'{"paths":{"/accounts/{account_id}":{"get":{}}}}'


def opened(*accounts: str) -> list[tuple[str, Any]]:
    return [(account, OpenAccount()) for account in accounts]


def check(spark: Any, ledger: Any) -> consistency.Verdict:
    return consistency.check(spark, Brokers(ledger.bootstrap), ledger.table)


def kept(first: int, states: list[bytes]) -> list[Version]:
    """The versions of a row that never ends."""
    return [Version(sequence, state, has_ended=False) for sequence, state in enumerate(states, first)]


def divergences(verdict: consistency.Verdict) -> Mapping[str, Any]:
    return {divergence.key: divergence for divergence in verdict.divergences}


def test_rows_that_are_the_fold_of_their_events_agree(spark: Any, ledger: Any) -> None:
    ledger.decide(*opened("ann", "bob", "eve", "éva ☃"))
    ledger.decide(("ann", Charge(amount_cents=500)), ("bob", Charge(amount_cents=700)))
    ledger.decide_but_abort(("ann", Charge(amount_cents=9_999)))
    ledger.decide(("ann", Pay(amount_cents=200)), ("éva ☃", CloseAccount()))
    ledger.decide(("nobody", Pay(amount_cents=1)))  # refused: a row without any event
    assert str(check(spark, ledger)) == "5 of 5 accounts agree"


def test_one_job_compares_all_tables(spark: Any, ledger: Any) -> None:
    ledger.decide(*opened("ann"), ("nobody", Pay(amount_cents=1)))
    compared = [consistency.Comparison(spark, Brokers(ledger.bootstrap), ledger.table) for _ in range(2)]
    spark.sparkContext.setJobGroup("compared", "all tables")
    try:
        found = list(consistency.verdicts(compared))
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert [(each.agree, each.differ) for each in found] == [(2, 0)] * 2
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("compared")) == 1


def test_a_row_from_before_its_state_got_a_field_is_still_the_fold() -> None:
    older = b'{"sequence":1,"state":{"phase":"open","balance_cents":0},"outcomes":{},"offset":0}'
    now = to_json(fold(DECIDER.evolve, [AccountOpened()], DECIDER.initial))
    versions = kept(1, [now])
    assert consistency.difference(DECIDER.row_codec, older, versions) is None
    assert consistency.difference(DECIDER.row_codec, older.replace(b":0}", b":9}", 1), versions) is not None


def test_a_row_that_cannot_be_read_says_what_is_wrong_with_it() -> None:
    other = b'{"sequence":1,"state":{"phase":"open","balance_cents":"0"},"outcomes":{},"offset":0}'
    why = "its row can't be read: state.open.balance_cents: Input should be a valid integer"
    assert consistency.difference(DECIDER.row_codec, other, kept(1, [b"{}"])) == why


def test_an_account_that_was_only_refused_something_is_not_shown() -> None:
    never, opened = (to_json(fold(DECIDER.evolve, events, DECIDER.initial)) for events in ([], [AccountOpened()]))
    assert answers.difference(b"", kept(1, [never]), never) is None
    assert answers.difference(b"", kept(1, [opened]), never) == "HTTP knows nothing of it, there are 1 events"


def test_a_view_without_a_sequence_may_answer_with_any_later_state() -> None:
    states = [b"null", b'{"orders":1}', b'{"orders":2}']
    versions, why = kept(4, states), "HTTP answers another orders at sequence 6"
    assert answers.difference(b'{"sku":"a","orders":1}', versions, b"null") is None
    assert answers.difference(b'{"sku":"a","orders":3}', versions, b"null") == why
    assert answers.difference(b'{"sku":"a","orders":1}', kept(0, states[:1]), b"null") is not None


def test_a_personal_text_is_encrypted_for_spark_and_not_in_an_answer() -> None:
    versions = kept(1, [b'{"holder":"sealed:1:YQ==:YQ==","orders":1}'])
    assert answers.difference(b'{"holder":"Ann","orders":1}', versions, b"null") is None
    assert answers.difference(b'{"holder":"Ann","orders":2}', versions, b"null") is not None


def test_empty_topics_agree(spark: Any, ledger: Any) -> None:
    assert str(check(spark, ledger)) == "0 of 0 accounts agree"


@pytest.mark.long  # in short, the first wrong version of one is
def test_a_tampered_row_is_named_with_its_event(spark: Any, ledger: Any) -> None:
    ledger.decide(*opened("ann", "bob", "eve", "fay"))
    ledger.decide(*((account, Charge(amount_cents=500)) for account in ("ann", "bob", "eve", "fay")))
    ledger.tamper("ann", balance_cents=501)
    ledger.tamper("eve", sequence=9)
    ledger.tamper("fay", sequence=1)
    found = divergences(check(spark, ledger))
    assert found.keys() == {"ann", "eve", "fay"}
    assert found["ann"].why == "its state differs at sequence 2"
    assert '"balance_cents":501' in found["ann"].live
    assert '"balance_cents":500' in found["ann"].folded
    assert found["ann"].at.startswith("after event 2, account.charged of 1997-01-05T00:00:00Z (ledger")
    assert "the row was changed by no event (ledger" in found["ann"].at
    assert found["eve"].why == "its row is at sequence 9, its events end at 2"
    assert found["fay"].why == "its row stopped at sequence 1, its events had gone on to 2"


@pytest.mark.usefixtures("spark")
def test_a_difference_exits_with_1(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.decide(*opened("ann", "bob"))
    ledger.tamper("ann", balance_cents=1)
    monkeypatch.setattr("pipelines.cli.table_of", lambda *_: ledger.table)
    run = CliRunner().invoke(cli, ["parity", "accounts", "accounts", "--bootstrap", ledger.bootstrap])
    assert run.exit_code == 1, run.output
    assert run.output.splitlines()[-1] == "Spark and the live tables DIFFER: 1 of 2 accounts agree"


def test_the_first_wrong_version_of_a_row_names_the_event(spark: Any, ledger: Any) -> None:
    ledger.decide(*opened("ann", "bob"))
    ledger.decide(("ann", Charge(amount_cents=100)))
    ledger.miscount("ann", 7)  # as a faulty evolve leaves them
    ledger.decide(("ann", Charge(amount_cents=500)), ("ann", Charge(amount_cents=200)))
    verdict = check(spark, ledger)
    assert (verdict.agree, verdict.differ) == (1, 1)
    (ann,) = verdict.divergences
    assert ann.why == "its state differs at sequence 4"
    assert '"balance_cents":607' in ann.live
    assert ann.at.startswith("at event 3, account.charged of 1997-01-04T00:00:00Z (ledger")


def test_missing_and_repeated_rows_and_events_are_named(spark: Any, ledger: Any) -> None:
    ledger.decide(*opened("deleted", "gap", "twice"))
    ledger.put_row("deleted", None)
    ledger.put_row("ghost", ledger.encoded_row("gap"))
    ledger.put_event("gap", ledger.event("gap", sequence=3))
    ledger.put_event("twice", ledger.event("twice", sequence=1))
    ledger.put_event("noise", b"{}")
    verdict = check(spark, ledger)
    reasons = {key: divergence.why for key, divergence in divergences(verdict).items()}
    assert reasons.pop("noise").endswith("BadMessage: Object missing required field `event_id`")
    assert reasons.pop("gap").endswith("sequence 3 follows 1")
    assert reasons.pop("twice").endswith("sequence 1 follows 1")
    assert reasons == {
        "deleted": "no row, but 1 events",
        "ghost": "its row is at sequence 1, its events end at 0",
    }
    assert str(verdict).startswith("0 of 5 accounts agree\n  deleted: no row, but 1 events\n    live    deleted")


@pytest.mark.parametrize(
    ("answers_to_get", "problem"),
    [
        ({}, "only with ONEFOLD_ENV=dev"),
        ({"/openapi.json": (200, b'{"paths":{}}')}, "answers no GET for a row of accounts"),
        ({"/openapi.json": (200, b"<html>")}, "--url names no worker"),
        ({"/openapi.json": (200, PATHS), "/accounts/ann": (401, b"{}")}, "/accounts/ann refuses the token"),
        ({"/openapi.json": (200, PATHS), "/accounts/ann": (503, b"{}")}, "/accounts/ann does not answer: 503"),
    ],
)
def test_a_service_that_does_not_answer_is_one_plain_error(
    answers_to_get: Mapping[str, tuple[int, bytes]], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        status, content = answers_to_get.get(request.url.path, (404, b""))
        return httpx.Response(status, content=content)

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    monkeypatch.setattr(answers, "_PAUSE_S", 0.0)
    with pytest.raises(answers.ServiceUnavailable, match=problem):
        answers.ask("http://worker", "accounts", [b"ann"])


def test_tables_that_a_service_does_not_serve_are_told_from_those_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(lambda _: httpx.Response(200, content=PATHS)))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    assert answers.served("http://worker", ["accounts", "kept"]) == {"accounts"}
    with pytest.raises(answers.NotServed, match="no GET for a row of kept, held"):
        answers.served("http://worker", ["kept", "held"])


@pytest.mark.parametrize("url", ["localhost:8000", "http://localhost:port"])
def test_what_is_no_url_is_not_asked_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_PAUSE_S", 0.0)
    with pytest.raises(answers.ServiceUnavailable, match=f"{url}/openapi.json is no URL: .+; fix: "):
        answers.ask(url, "accounts", [b"ann"])


def test_live_workers_agree_in_the_changelog_and_over_http(spark: Any, stack: Stack) -> None:
    url = stack.urls("accounts")[0]
    for name in ("ann", "bob"):
        httpx.post(f"{url}/accounts/parity-{name}", json={"holder": name}).raise_for_status()
    httpx.post(f"{url}/accounts/parity-ann/charges", json={"amount_cents": 2999}).raise_for_status()
    options = ["--bootstrap", stack.bootstrap, "--url", url, "--path", "/accounts/{account_id}"]
    run = CliRunner().invoke(cli, ["parity", "accounts", *options])
    assert run.exit_code == 0, run.output
    counts = re.search(r"\((\d+) also over HTTP, (\d+) histories, (\d+) outcomes, (\d+) listed\)", run.output)
    assert counts is not None, run.output
    assert all(int(each) >= 2 for each in counts.groups())
    assert run.output.splitlines()[-1].startswith("Spark and the live tables agree: ")


def test_a_sample_is_of_one_partition_and_misses_no_key_of_it(spark: Any, ledger: Any) -> None:
    accounts = [f"account-{number}" for number in range(12)]
    ledger.decide(*opened(*accounts))
    for account in accounts[:4]:
        ledger.tamper(account, balance_cents=1)
    for account in accounts[4:8]:
        ledger.put_row(account, None)
    verdict = consistency.check(spark, Brokers(ledger.bootstrap), ledger.table, sample=len(accounts))
    there = [each for each in accounts if partition_of(each.encode(), PARTITIONS) == verdict.partition]
    wrong = [each for each in there if each in accounts[:8]]
    assert (verdict.agree, verdict.differ) == (len(there) - len(wrong), len(wrong))
    assert f"{len(there)} accounts of partition {verdict.partition} agree" in str(verdict)
    one = consistency.check(spark, Brokers(ledger.bootstrap), ledger.table, sample=1)
    assert 1 <= one.total <= len(accounts)


SHOWN = {"account_id": "ann", "phase": "open", "balance_cents": 0, "sequence": 1}
EVENT = {
    "event_id": "e",
    "type": "account.opened",
    "schema_version": AccountOpened.VERSION,
    "aggregate_id": "ann",
    "sequence": 1,
    "occurred_at": "1997-01-01T00:00:00Z",
    "correlation_id": "c",
    "causation_id": "c/1",
    "data": {"holder": "Ann"},
}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, None),
        ({"/accounts/ann/events": {"items": [EVENT | {"type": "account.closed"}]}}, "HTTP answers another event 1"),
        ({"/accounts/ann/events": {"items": []}}, "HTTP answers 0 events, there are 1"),
        ({"as_of=1": SHOWN | {"balance_cents": 5}}, "HTTP answers another balance_cents at sequence 1, as of then"),
        (
            {"/accounts/ann/commands/c/1": {"sequence": 2}},
            "HTTP answers 2 for command c/1, which led to event 1",
        ),
        ({"phase=open": {"items": [], "cursor": None}}, "HTTP does not list it by phase"),
        ({"balance_cents_max=0": {"items": [], "cursor": None}}, "HTTP does not list it by balance_cents"),
        (
            {"phase=open&balance_cents_min=0": {"items": [], "cursor": None}},
            "HTTP does not list it by phase and balance_cents",
        ),
    ],
)
def test_all_that_is_served_of_an_account_is_compared_with_its_events(
    other: Mapping[str, Any], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = DECIDER.event_codec.decode(to_json(EVENT | {"data": {"holder": "sealed:1:YQ==:YQ=="}}))
    value = DECIDER.event_codec.encode(event)
    item = from_json(value) | {"data": from_json(value)["data"] | {"holder": "Ann"}}
    answers_to_get = {
        "/accounts/ann": SHOWN,
        "/accounts/ann/events": {"items": [item]},
        "/accounts/ann/commands/c/1": {"sequence": 1},
        "/accounts": {"items": [SHOWN], "cursor": None},
    } | dict(other)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") != "Bearer operators":
            return httpx.Response(401)
        filters = request.url.query.decode().split("&")
        asked = {request.url.path, *filters, "&".join(filters[:2])}
        known = [body for name, body in reversed(answers_to_get.items()) if name in asked]
        return httpx.Response(200, json=known[0]) if known else httpx.Response(404)

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    monkeypatch.setenv("ONEFOLD_TOKEN", "operators")
    accounts, indexes = table_of("accounts", "accounts"), ("phase", "balance_cents")
    found = served.compare(
        "http://worker",
        "/accounts/{account_id}",
        replace(accounts, table=replace(accounts.table, indexes=(*indexes, indexes))),
        {b"ann": to_json(SHOWN)},
        {b"ann": [Record(0, 0, value)]},
        None,
    )
    assert found.wrong == ({} if why is None else {b"ann": why})
    if why is None:
        assert found.counts == {"histories": 1, "outcomes": 1, "listed": 3}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nothing"], "no service is called nothing"),
        (["accounts", "nothing"], "accounts has no table nothing"),
        (["accounts", "--path", "/accounts/{id}"], "--path is of one table's rows at --url"),
        (["accounts", "--bootstrap", "127.0.0.1:1"], "127.0.0.1:1: "),
    ],
)
def test_a_mistake_that_an_operator_can_fix_is_reported_before_spark_starts(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "ANSWER_S", 1.0)
    run = CliRunner().invoke(cli, ["parity", *arguments])
    assert problem in f"{run.exception} {' '.join(re.findall('[^│ ]+', run.output))}"


def test_a_service_without_tables_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.tables", lambda _: ())
    for verb in (["parity", "mails"], ["archive", "anywhere", "mails"], ["rebuild", "mails"]):
        assert "mails has no tables" in str(CliRunner().invoke(cli, verb).exception)


def test_a_bug_is_shown_and_does_not_exit_as_if_it_had_found_a_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("pipelines.cli.cli", broken)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith("RuntimeError: a bug\n")


def test_a_failure_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pipelines", "parity", "nothing"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("no service is called nothing; there are ")
