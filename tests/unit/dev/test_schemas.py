"""What has changed in a service's messages is told with its release, and accepted by writing files for review."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr
from typer.testing import CliRunner

from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import PaymentReceived
from services.accounts.domain.state import Account
from services.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from shared.dev import schemas
from shared.dev.cli import cli
from shared.dev.schemas import accept, bare, check_lossless, compared, described, document_of, schema_of
from shared.dev.stages import StageFailed
from shared.domain.envelope import EventEnvelope
from shared.domain.message import Command, Event
from shared.engine.processors import AggregateProcessor, PolicyProcessor, Processor, ProjectionProcessor
from shared.engine.wiring import processors_of
from shared.runtime.checkout import CHECKOUT, found_services
from shared.testing.golden import Golden
from shared.topology.policy import Policy, Send
from shared.topology.projection import Projection
from shared.topology.topics import Table
from tests.engine.publishing_accounts import PUBLISHING, WITH_PUBLIC, Charged
from tests.pipelines.larder import service as larder

ACCEPTED = Path("services/accounts/schemas.json")
PAID = "account.payment_received"

Edit = Callable[[Any], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a checkout whose services are as they are here, and not yet accepted."""
    root = tmp_path / "checkout"
    (root / ACCEPTED).parent.mkdir(parents=True)
    return root


def accept_as_if(root: Path, before: Edit, service: str = "accounts") -> Path:
    """A service as it was before a change: `before` takes the change back."""
    document = bare(document_of(service))
    before(document)
    file = schemas.file_of(root, service)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))
    return file


def without_amount(document: Any) -> None:
    schema = document["events"][PAID]["schema"]
    del schema["properties"]["amount_cents"]
    del schema["required"]


def without_closing(document: Any) -> None:
    del document["events"]["account.closed"]


def test_a_change_is_told_with_its_verdict_and_its_release(root: Path) -> None:
    accept_as_if(root, without_closing)
    report = compared(root, ["accounts"])
    assert report.differ == ("accounts",)
    heading, change, release = report.lines
    assert heading == "accounts is not as in services/accounts/schemas.json:"
    assert change == "  backward    event account.closed: is new"
    assert release.startswith("    release: consumers first, on every worker, then producers")


def test_public_events_are_schemas_of_their_own() -> None:
    (found,) = described(WITH_PUBLIC, processors_of(PUBLISHING))["public"].items()
    assert found == ("account.charged.v1", {"version": 1, "upcast": [], "schema": schema_of(Charged)})


def test_what_is_accepted_is_told_no_more(root: Path) -> None:
    accept_as_if(root, without_closing)
    wrote = list(accept(root, ["accounts"], breaking=False))
    assert f"wrote   {ACCEPTED}" in wrote
    assert compared(root, ["accounts"]) == schemas.Report(("as accepted",), ())
    assert list(accept(root, ["accounts"], breaking=False)) == []


def test_a_change_after_which_the_log_cannot_be_read_is_not_accepted_by_mistake(root: Path) -> None:
    accept_as_if(root, without_amount)
    before = (root / ACCEPTED).read_text()
    with pytest.raises(StageFailed, match=f"forward     event {PAID}, amount_cents: is new, and has no default") as no:
        list(accept(root, ["accounts"], breaking=False))
    assert "not as it is: " in no.value.problem
    assert "--accept --breaking" in no.value.fix
    assert (root / ACCEPTED).read_text() == before
    assert [*root.rglob("golden")] == []
    list(accept(root, ["accounts"], breaking=True))
    assert compared(root, ["accounts"]).differ == ()


@pytest.fixture
def another(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A second service, which has the same messages."""
    accounts = import_module("services.accounts.app")
    monkeypatch.setattr(schemas, "import_module", lambda _: accounts)
    (root / "services" / "another").mkdir()
    return "another"


def test_of_several_services_none_is_accepted_if_one_is_refused(root: Path, another: str) -> None:
    files = [accept_as_if(root, without_closing), accept_as_if(root, without_amount, another)]
    before = [file.read_text() for file in files]
    with pytest.raises(StageFailed, match="another would not read what was written before"):
        list(accept(root, ["accounts", another], breaking=False))
    assert [file.read_text() for file in files] == before


def test_a_service_that_was_never_accepted_is_not_accepted_along_with_others(
    root: Path, another: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_as_if(root, without_closing)
    monkeypatch.setattr("shared.dev.verbs.documents.CHECKOUT", root)
    monkeypatch.setattr("shared.dev.here.found_services", lambda: ["accounts", another])
    told = CliRunner().invoke(cli, ["schemas", "--accept"], catch_exceptions=False).output.splitlines()
    assert told[0] == f"wrote   {ACCEPTED}"
    assert told[-1] == "as accepted; no schemas are accepted yet of another"
    assert [*root.rglob("schemas.json")] == [root / ACCEPTED]
    records = {path.stem for path in root.glob(f"tests/unit/{another}/golden/*.json")}
    assert records == {f"{each.TYPE}.v{each.VERSION}" for each in (*DECIDER.commands, *DECIDER.events)}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--breaking"], "--breaking is about --accept"),
        (["accounts", "--accept", "--format", "avro"], "--format only shows"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options: list[str], problem: str) -> None:
    with pytest.raises(StageFailed, match=problem):
        CliRunner().invoke(cli, ["schemas", *options], catch_exceptions=False)


def test_a_service_that_was_never_accepted_is_free_to_change(root: Path) -> None:
    report = compared(root, ["accounts"])
    assert report == schemas.Report(("as accepted; no schemas are accepted yet of accounts",), ())


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def release(repository: Path) -> None:
    git(repository, "init")
    git(repository, "add", ".")
    git(repository, "commit", "-m", "the first release")
    git(repository, "tag", "v1")


of_itself_or_of_more = pytest.mark.parametrize("repository", [".", ".."])


@of_itself_or_of_more
def test_what_a_release_brings_is_told_since_the_last_tag(root: Path, repository: str) -> None:
    accept_as_if(root, without_closing)
    release(root / repository)
    list(accept(root, ["accounts"], breaking=False))
    report = compared(root, ["accounts"])
    assert report.differ == ()
    assert report.lines[:2] == ("accounts since v1:", "  backward    event account.closed: is new")
    assert report.lines[-1] == "as accepted"


@of_itself_or_of_more
def test_a_golden_record_that_was_edited_after_its_release_is_told(root: Path, repository: str) -> None:
    list(accept(root, ["accounts"], breaking=False))
    release(root / repository)
    record = root / "tests" / "unit" / "accounts" / "golden" / f"{PAID}.v1.json"
    record.write_text(record.read_text().replace('"amount_cents": 1', '"amount_cents": 2'))
    report = compared(root, ["accounts"])
    assert report.differ == ("accounts",)
    assert report.lines[0].endswith(f"fix: `git checkout v1 -- {record.relative_to(root)}`")


def test_the_golden_records_that_are_written_are_read(root: Path) -> None:
    wrote = list(accept(root, ["accounts"], breaking=False))
    golden = root / "tests" / "unit" / "accounts" / "golden"
    assert f"wrote   {golden.relative_to(root)}/{PAID}.v1.json: see that it is what a producer writes" in wrote
    assert json.loads((golden / f"{PAID}.v1.json").read_text())["data"] == {"amount_cents": 1}
    earlier = "account.charged.v1.json"  # can't be made of the present version
    shutil.copy(CHECKOUT / "tests" / "unit" / "accounts" / "golden" / earlier, golden)
    Golden(golden, DECIDER).check()


def test_a_golden_record_is_never_written_again(root: Path) -> None:
    record = root / "tests" / "unit" / "accounts" / "golden" / f"{PAID}.v1.json"
    record.parent.mkdir(parents=True)
    record.write_text("as a producer wrote it")
    list(accept(root, ["accounts"], breaking=False))
    assert record.read_text() == "as a producer wrote it"


def test_what_others_write_for_a_view_is_in_its_document() -> None:
    topology = replace(TOPOLOGY, tables=(Table("payments", source=EVENTS),), topics=(EVENTS,))
    projection = Projection(
        topology.tables[0], lambda view, *_: view, initial=None, events=(PaymentReceived,), state=Account
    )
    assert described(topology, [ProjectionProcessor(projection)])["events"].keys() == {PAID}


def test_the_state_of_a_joined_table_is_in_its_document() -> None:
    stated = described(larder.TOPOLOGY, processors_of(larder.SERVICE))["states"]
    assert stated.keys() == {"heaps", "meals", "left"}
    assert stated["left"]["schema"] == schema_of(larder.Left)


def test_what_would_not_be_read_as_it_is_written_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tagged(Event):
        TYPE = "account.tagged"

        tags: frozenset[str]

    app = import_module("services.accounts.app").app
    projection = Projection(ACCOUNTS, lambda view, *_: view, initial=None, events=(Tagged,), state=int)
    monkeypatch.setattr(app, "processors", [*app.processors, ProjectionProcessor(projection)])
    with pytest.raises(StageFailed, match=r"^  services/accounts: Tagged\.tags: a set has no order, .*; fix: use a"):
        compared(root, ["accounts"])


class Masked(Command):
    TYPE = "account.mask"

    secret: SecretStr


def ignores(_: EventEnvelope[Event]) -> list[Send]:
    return []


@pytest.mark.parametrize(
    "processor",
    [
        AggregateProcessor(replace(DECIDER, commands=(Masked,)), table=ACCOUNTS, events=EVENTS),  # type: ignore[arg-type]
        ProjectionProcessor(
            Projection(ACCOUNTS, lambda view, *_: view, initial=None, events=(PaymentReceived,), state=Masked)
        ),
        PolicyProcessor(Policy(ignores, source=EVENTS, events=(PaymentReceived,), commands={COMMANDS: (Masked,)})),
    ],
    ids=lambda processor: type(processor).__name__,
)
def test_every_type_that_a_processor_writes_has_to_come_back(processor: Processor) -> None:
    with pytest.raises(ValueError, match=r"^Masked\.secret: its JSON is masked"):
        check_lossless([processor])


@pytest.mark.parametrize("service", found_services())
def test_every_message_has_a_sample(service: str, root: Path) -> None:
    (root / "services" / service).mkdir(exist_ok=True)
    assert [line for line in accept(root, [service], breaking=False) if "by hand" in line] == []


def test_a_sample_that_cannot_be_made_is_left_to_people(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shouted(Event):
        TYPE = "account.shouted"

        word: Annotated[str, Field(pattern=r"^\p{Lu}+$")]  # which only pydantic's engine knows

    monkeypatch.setattr(schemas, "own_messages", lambda _: [Shouted])
    (told,) = (line for line in accept(root, ["accounts"], breaking=False) if "golden" in line)
    assert told.startswith(
        "write   tests/unit/accounts/golden/account.shouted.v1.json by hand, as no sample can be made: "
    )


def test_a_service_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_name: str) -> None:
        raise ValueError("no upcaster for [('account.paid', 1)]: give it in upcasters=")

    monkeypatch.setattr(schemas, "import_module", fails)
    with pytest.raises(StageFailed, match=r"services/accounts does not start: no upcaster for .*account\.paid"):
        document_of("accounts")
