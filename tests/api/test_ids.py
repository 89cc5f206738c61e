"""Every allowed id works on every worker, percent-encoded or not; every worker refuses any other id."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import islice
from urllib.parse import quote

import pytest

from shared.domain.ids import AGGREGATE_ID_MAX_BYTES
from tests.accounts.topology import TOPOLOGY
from tests.api.client import Client
from tests.queries.cluster import keys_in

pytestmark = pytest.mark.broker

ODD_ENDS = [
    "/",
    "a/b",
    "/commands/x",
    "%2F",
    "%",
    "?x=1",
    "#x",
    ";x",
    "+",
    " ",
    "\\",
    '"',
    "'",
    "{}",
    "..",
    "../..",
    "ü",
    "e\u0301",
    "例",
    "🧾",
    "\u202e",
    "\ufffd",
]


@pytest.mark.parametrize("end", ODD_ENDS)
def test_an_odd_id_works_on_every_worker(workers: Sequence[Client], end: str) -> None:
    name = f"{uuid.uuid4()}{end}"
    account = f"/accounts/{quote(name, safe='')}"
    opened = workers[0].post(account)
    assert opened.status == 201
    assert workers[1].post(f"{account}/charges", {"amount_cents": 5}).json["sequence"] == 2
    for worker in workers:
        found = worker.get(account)
        assert (found.json["account_id"], found.json["balance_cents"]) == (name, 5)
        assert worker.get(opened.headers["location"]).body == opened.body


def test_an_id_may_be_percent_encoded_or_not(workers: Sequence[Client]) -> None:
    name = f"a-b_c~{uuid.uuid4()}"
    assert workers[0].post(f"/accounts/{name}").status == 201
    escaped = "".join(f"%{byte:02x}" for byte in name.encode())
    for worker in workers:
        assert worker.get(f"/accounts/{escaped}").json["account_id"] == name


@pytest.mark.parametrize("character", ["a", "ü", "🧾"])
def test_an_id_may_have_128_bytes(workers: Sequence[Client], character: str) -> None:
    unique = str(uuid.uuid4())
    size_bytes = len(character.encode())
    most = unique + character * ((AGGREGATE_ID_MAX_BYTES - len(unique)) // size_bytes)
    for worker in workers:
        assert worker.post(f"/accounts/{quote(most)}").status in (201, 409)
        assert worker.post(f"/accounts/{quote(most + character)}").code == "request.invalid"


@pytest.mark.parametrize(
    "sent", ["%00", "a%0Ab", "%7F", "%C2%85", "%FF", "a%C3", "%ED%A0%80", ".", "..", "%2e%2E", "x" * 5000]
)
def test_an_illegal_id_is_refused_by_every_worker(workers: Sequence[Client], sent: str) -> None:
    for worker in workers:
        for answer in (worker.get(f"/accounts/{sent}"), worker.post(f"/accounts/{sent}")):
            assert (answer.status, answer.code) == (422, "request.invalid")


@pytest.mark.parametrize("path", ["/accounts/", "/accounts//", "/accounts//charges", "/accounts/a/b/c/d"])
def test_a_path_without_an_id_is_not_found(workers: Sequence[Client], path: str) -> None:
    for worker in workers:
        assert {worker.get(path).code, worker.post(path).code} <= {"not_found", "method_not_allowed"}


@pytest.mark.parametrize("key", ["a/b", "a%2Fb", "a?b#c", 'a"b', "\\", "'", "..a", "x" * 128])
def test_an_odd_idempotency_key_finds_its_outcome(workers: Sequence[Client], open_account: str, key: str) -> None:
    charged = workers[0].post(f"{open_account}/charges", {"amount_cents": 5}, Idempotency_Key=key)
    assert (charged.status, charged.json["command_id"]) == (201, key)
    for worker in workers:
        assert worker.get(charged.headers["location"]).body == charged.body


@pytest.mark.parametrize("key", ["", " ", "a b", "é", ".", "..", "x" * 129])
def test_an_illegal_idempotency_key_is_refused(workers: Sequence[Client], open_account: str, key: str) -> None:
    for worker in workers:
        answer = worker.post(f"{open_account}/charges", {"amount_cents": 5}, Idempotency_Key=key)
        assert (answer.status, answer.code) == (422, "request.invalid")
    assert workers[0].get(open_account).json["balance_cents"] == 0


def test_a_key_that_no_header_can_have_makes_no_request(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        assert worker.post(f"{open_account}/charges", {"amount_cents": 5}, Idempotency_Key="\x7f").status == 400
    assert workers[0].get(open_account).json["balance_cents"] == 0


@pytest.mark.parametrize("partition", range(TOPOLOGY.partitions))
def test_every_key_on_every_worker_gives_the_same_answer(workers: Sequence[Client], partition: int) -> None:
    names = list(islice(keys_in(partition, str(uuid.uuid4())), 6))
    for number, name in enumerate(names[:3]):
        assert workers[number % 2].post(f"/accounts/{name}").status == 201
    for name in names:
        one, other = (worker.get(f"/accounts/{name}") for worker in workers)
        assert (one.status, one.body) == (other.status, other.body)
        assert one.headers.get("etag") == other.headers.get("etag")
        assert one.headers["onefold-partition"] == other.headers["onefold-partition"] == str(partition)
