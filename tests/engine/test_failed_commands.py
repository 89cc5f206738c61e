"""A command that meets a bug is answered, and holds up nothing; an operator has it handled once the bug is fixed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from shared.dev.cli import cli
from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.domain.row import FAILURES_KEPT
from shared.kafka.murmur2 import partition_of
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.api.client import Answer, Client
from tests.conftest import accounts_command, accounts_stack, variant_of_accounts
from tests.engine.failing_accounts import UNLUCKY_CENTS
from tests.engine.parked import ask, await_letter, send
from tests.faults.load import command

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker, with the bug until a test mends it."""

    command = variant_of_accounts("tests.engine.failing_accounts")
    with accounts_stack(tmp_path_factory.mktemp("failing"), workers=1, command=command) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Client:
    return Client(stack.urls("accounts")[0])


@pytest.fixture
def account(client: Client) -> str:
    name = f"failing-{uuid.uuid4()}"
    assert client.post(f"/accounts/{name}").status == 201
    return name


@pytest.mark.usefixtures("known")
def test_its_caller_gets_an_answer_and_the_next_command_of_the_key_goes_on(
    stack: Stack, client: Client, account: str
) -> None:
    failed = _charge(client, account, UNLUCKY_CENTS, "k1")
    assert (failed.status, failed.code) == (500, "command.failed")
    assert "has had no effect" in failed.json["detail"]
    assert _charge(client, account, 5, "k2").json["sequence"] == 2
    assert _charge(client, account, UNLUCKY_CENTS, "k1").body == failed.body
    assert _charge(client, account, 14, "k1").code == "idempotency_key.reused"
    again = client.get(failed.headers["location"])
    assert (again.status, again.body) == (500, failed.body)
    assert client.get(f"/accounts/{account}").json["balance_cents"] == 5
    await_letter(stack, _id(account, failed), code="command.failed", behind=0, attempts=1)
    environment = {"ONEFOLD_BOOTSTRAP": stack.bootstrap}
    ran = CliRunner().invoke(cli, ["status", f"--url=accounts={client.url}"], env=environment)
    assert "see `dead-letters list accounts`" in ran.output


def test_a_bad_message_holds_up_nothing_either(stack: Stack, client: Client, account: str) -> None:
    partition = partition_of(account.encode(), TOPOLOGY.partitions)
    offset = send(stack.bootstrap, partition, account.encode(), b"charge!")
    assert _charge(client, account, 5, "k1").status == 201
    place = f"accounts/{partition}/@{COMMANDS.name}@{offset}"
    await_letter(stack, place, code="message.bad", offset=offset, behind=0)
    ask(stack, place, "discard", {"offset": offset, "reason": "nobody can read it"})
    await_letter(stack, place)


def test_once_the_bug_is_fixed_a_retry_lets_it_take_effect_once(stack: Stack, client: Client, account: str) -> None:
    by_policy = send(
        stack.bootstrap,
        partition_of(account.encode(), TOPOLOGY.partitions),
        account.encode(),
        command(account, "p1", "account.charge", {"amount_cents": UNLUCKY_CENTS}).replace(
            b'"data"', b'"causation_id": "e1", "data"'
        ),
    )
    failed = _charge(client, account, UNLUCKY_CENTS, "k1")
    places = [_place(account, by_policy), _id(account, failed)]
    for number in range(FAILURES_KEPT + 1):
        assert _charge(client, account, 1, f"other-{number}").status == 201
    for place in places:
        await_letter(stack, place, attempts=1)
        ask(stack, place, "retry")
        await_letter(stack, place, code="command.failed", attempts=2)
    (worker,) = stack.workers
    _mend(worker)
    assert client.get(failed.headers["location"]).code == "command.failed"
    for place in (*places, *places):
        _retry(stack, place)
    balance = FAILURES_KEPT + 1 + 2 * UNLUCKY_CENTS
    assert client.get(f"/accounts/{account}").json["balance_cents"] == balance
    assert client.get(failed.headers["location"]).status == 201
    assert _charge(client, account, UNLUCKY_CENTS, "k1").json["sequence"] == FAILURES_KEPT + 4
    assert client.get(f"/accounts/{account}").json["balance_cents"] == balance


def _mend(worker: Worker) -> None:
    worker.stop()
    worker.command = accounts_command()
    worker.start()


def _retry(stack: Stack, place: str) -> None:
    ask(stack, place, "retry")
    await_letter(stack, place)


def _charge(client: Client, account: str, cents: int, key: str) -> Answer:
    return client.post(f"/accounts/{account}/charges", {"amount_cents": cents}, Idempotency_Key=key)


def _id(account: str, answer: Answer) -> str:
    """Where the command of this answer is parked."""
    mine = next(part for part in answer.headers["onefold-position"].split(",") if part.startswith(COMMANDS.name))
    return _place(account, int(mine.rpartition("@")[2]))


def _place(account: str, offset: int) -> str:
    return f"accounts/{partition_of(account.encode(), TOPOLOGY.partitions)}/@{COMMANDS.name}@{offset}"
