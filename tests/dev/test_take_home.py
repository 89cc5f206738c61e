"""A service is carried to another machine: what was exported is served there again, up to any message of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pipelines import consistency
from pipelines.catalog import table_in
from pipelines.session import spark_session
from shared.dev.importing import fill, send_next
from shared.dev.stack import Stack
from shared.dev.stages import StageFailed
from shared.kafka.access import client_config
from shared.kafka.brokers import Brokers
from shared.kafka.spans import Span, WholeRecord, read_whole
from shared.operations.export import AnotherService, Export, ExportUnreadable, export
from shared.parking.parked import NOTE_ID
from shared.runtime.positions import Place
from shared.stories.search import find_story
from shared.stories.story import Story
from shared.topology import Service
from tests.accounts.domain.decide import DECIDER
from tests.accounts.service import SERVICE
from tests.accounts.topology import TOPOLOGY
from tests.api.client import Client
from tests.conftest import accounts_stack
from tests.waiting import eventually

pytestmark = pytest.mark.broker

GROUP = TOPOLOGY.group


@pytest.fixture
def account(stack: Stack) -> str:
    """The path of one that has owed, and was refused something."""
    path, client = f"/accounts/home-{uuid4().hex[:8]}", Client(stack.urls(GROUP)[0])
    assert client.post(path, {"holder": "Ada"}, Idempotency_Key=f"{path[-8:]}-open").status == 201
    assert client.post(f"{path}/charges", {"amount_cents": 5}, Idempotency_Key=f"{path[-8:]}-five").status == 201
    assert client.post(f"{path}/closure").status == 409
    assert client.post(f"{path}/charges", {"amount_cents": 7}, Idempotency_Key=f"{path[-8:]}-seven").status == 201
    return path


@pytest.fixture
def home(stack: Stack, account: str, tmp_path: Path) -> Path:
    assert account
    export(SERVICE, stack.bootstrap, tmp_path / "home", lambda *_: None)
    return tmp_path / "home"


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.long  # in short, one that is not as exported is refused
def test_an_export_is_served_elsewhere_from_the_same_records_at_the_same_offsets(
    stack: Stack, account: str, home: Path, tmp_path: Path
) -> None:
    fill(SERVICE, [TOPOLOGY], home, tmp_path / "laptop", None)
    with accounts_stack(tmp_path / "laptop", workers=0) as laptop:
        there, exported = Brokers(laptop.bootstrap), Export(home, lambda *_: None)
        parts = exported.places()
        for place, found in there.bounds([*parts]).items():
            assert (found.start, found.end) == (parts[place].start, parts[place].end)
            if found.start < found.end:
                span = Span(place, found.start, found.end)
                assert _records(laptop, span) == _records(stack, span), place
        assert there.positions(GROUP) == exported.manifest.positions
        worker = laptop.add_worker(GROUP)
        before, after = (Client(url).get(account).json for url in (stack.urls(GROUP)[0], worker.url))
        assert after == before | {"holder": None}, "all but what is sealed, whose key stays behind"
        assert _story(laptop, account) == _story(stack, account)
        assert Client(worker.url).post(f"{account}/charges", {"amount_cents": 1}).json["sequence"] == 4
        with spark_session("taken-home", cores=1) as spark:
            verdict = consistency.check(spark, there, table_in("tests.accounts", TOPOLOGY.tables[0].name))
            assert (verdict.differ, verdict.agree > 0) == (0, True), str(verdict)


@pytest.mark.long  # in short, the whole of it is served again
def test_an_export_is_replayed_up_to_the_message_that_comes_next(
    stack: Stack, account: str, home: Path, tmp_path: Path
) -> None:
    cut = fill(SERVICE, [TOPOLOGY], home, tmp_path / "laptop", f"{account[-8:]}-seven")
    assert cut is not None
    with accounts_stack(tmp_path / "laptop", workers=1) as laptop:
        client = Client(laptop.urls(GROUP)[0])
        assert eventually(lambda: client.get(account), lambda found: found.status == 200).json["balance_cents"] == 5
        assert send_next(TOPOLOGY, home, laptop.root, laptop.bootstrap) == cut.at, "at the offset that it had"
        found = eventually(lambda: client.get(account).json, lambda found: found["balance_cents"] == 12)
        assert found == Client(stack.urls(GROUP)[0]).get(account).json | {"holder": None}
        assert [each.key for each in _story(laptop, account).steps] == [account[10:]] * 2
    with pytest.raises(StageFailed, match=r"is not empty.*\n.*\.onefold/up"):
        fill(SERVICE, [TOPOLOGY], home, tmp_path / "laptop", None)


def test_what_is_not_as_exported_or_not_of_this_checkout_is_refused(home: Path) -> None:
    found = Export(home, lambda *_: None)
    grown = Service(replace(TOPOLOGY, version=2), decider=DECIDER)
    with pytest.raises(AnotherService, match=r"of accounts with 8 partitions.*declares accounts-v2"):
        found.refuse_unless_of(grown)
    without = Service(replace(TOPOLOGY, history=None), decider=DECIDER)
    with pytest.raises(AnotherService, match="has accounts-chapters-changelog, which"):
        found.refuse_unless_of(without)
    file = home / found.places()[Place("accounts.events.v1", 3)].file
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(ExportUnreadable, match=rf"{file.name} was changed since it was exported; fix: "):
        Export(home, lambda *_: None)
    file.unlink()
    with pytest.raises(ExportUnreadable, match=f"{file.name} is missing"):
        Export(home, lambda *_: None)


def _records(at: Stack, span: Span) -> list[WholeRecord]:
    """All of them but the note of the topics' ids, which are each cluster's own."""
    found = read_whole(client_config(at.bootstrap), span)
    return [each._replace(value=None) if each.key == NOTE_ID.encode() else each for each in found]


def _story(at: Stack, account: str) -> Story:
    found = find_story(at.bootstrap, [TOPOLOGY], f"{account[-8:]}-seven", now_ms=time.time_ns() // 1_000_000)
    return found.model_copy(update={"seconds": 0.0, "records_read": 0, "read_until": None})
