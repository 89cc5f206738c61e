"""A record that holds up its key stops no other; the records behind it are released in order, once."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from shared.dev.cli import cli
from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.spans import read_all
from shared.parking.parked import OperatorRequest
from shared.parking.parking import PAGE_RECORDS
from shared.parking.requests import operator_requests
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.engine.parked import ask, await_letter, letter, release, send
from tests.faults.load import command
from tests.queries.cluster import owners

pytestmark = pytest.mark.broker


def test_the_rest_of_the_key_waits_and_other_keys_go_on(stack: Stack) -> None:
    poisoned, healthy = _account(stack), _account(stack)
    offset = _poison(stack, poisoned)
    charged = _charge(stack, poisoned, 3)
    assert _balance(stack, healthy, _charge(stack, healthy, 3)) == 6
    await_letter(stack, _id(poisoned), offset=offset, code="message.unknown", attempts=1, behind=3)
    assert _balance(stack, poisoned, charged) == 0
    listed = httpx.get(f"{stack.workers[1].url}/dead-letters", params={"limit": 500}, timeout=10).json()
    assert _id(poisoned) in [item["id"] for item in listed["items"]]
    assert {part["status"] for part in listed["partitions"]} == {"fresh"}
    assert _counted(stack) == len(listed["items"])
    release(stack, _id(poisoned), offset, behind=3)
    assert _balance(stack, poisoned) == 6


def test_a_failed_retry_keeps_every_record_parked(stack: Stack) -> None:
    account = _account(stack)
    offset = _poison(stack, account)
    _charge(stack, account, 2)
    await_letter(stack, _id(account), attempts=1, behind=2)
    ask(stack, _id(account), "retry")
    await_letter(stack, _id(account), offset=offset, attempts=2, behind=2)
    assert _balance(stack, account) == 0
    release(stack, _id(account), offset, behind=2)
    assert _balance(stack, account) == 3


def test_only_the_record_that_was_shown_is_discarded(stack: Stack) -> None:
    account = _account(stack)
    offset = _poison(stack, account)
    await_letter(stack, _id(account), offset=offset)
    ask(stack, _id(account), "discard", {"offset": offset + 1, "reason": "not this one"})
    ask(stack, _id(account), "discard", {"offset": offset, "reason": "this one"})
    await_letter(stack, _id(account))
    note_id = f"{_id(account)}@{TOPOLOGY.tables[0].source.name}"
    noted = [request for request in operator_requests(Brokers(stack.bootstrap), TOPOLOGY) if request.id == note_id]
    assert noted == [OperatorRequest(action="dropped", id=note_id, offset=offset, reason="this one")]


def _kill_and_restart(stack: Stack) -> None:
    """Both workers, at once."""
    for worker in stack.workers[:2]:
        worker.kill()
    for worker in stack.workers[:2]:
        worker.spawn()
    for worker in stack.workers[:2]:
        worker.await_ready()
    owners(stack)  # the first may have to take over again when the second joins


def test_a_corrected_command_takes_effect_in_its_place_and_so_does_what_waits_behind_it(stack: Stack) -> None:
    account = _account(stack)
    wrong = command(account, f"charge-{account}", "account.charge", {"amount_cents": 12, "more": 1})
    offset = send(stack.bootstrap, _partition(account), account.encode(), wrong)
    _charge(stack, account, 2)
    await_letter(stack, _id(account), offset=offset, code="message.unknown", behind=2)
    url = f"{stack.workers[1].url}/dead-letters/{quote(_id(account), safe='')}/correct"
    correction = {"offset": offset, "data": {"amount_cents": 12}, "reason": "it was a test"}
    with ThreadPoolExecutor(2) as pool:  # asked for twice, carried out once
        answers = list(pool.map(lambda _: httpx.post(url, json=correction, timeout=60), range(2)))
    assert 201 in [answer.status_code for answer in answers], [answer.text for answer in answers]
    await_letter(stack, _id(account))
    assert _balance(stack, account) == 15


def test_parked_records_outlive_their_workers_and_are_released_once(stack: Stack) -> None:
    account = _account(stack)
    offset = _poison(stack, account)
    _charge(stack, account, 4)
    await_letter(stack, _id(account), behind=4)
    _kill_and_restart(stack)
    await_letter(stack, _id(account), offset=offset, behind=4)
    counted = _counted(stack)
    assert counted > 0
    ask(stack, _id(account), "discard", {"offset": offset, "reason": "it was a test"})
    await_letter(stack, _id(account), behind=3)
    with ThreadPoolExecutor(4) as pool:  # requested four times, carried out once
        list(pool.map(lambda worker: ask(stack, _id(account), "retry", worker=worker), [0, 1, 0, 1]))
    await_letter(stack, _id(account))
    assert _balance(stack, account) == 10
    assert _counted(stack) == counted - 1


@pytest.mark.long  # in short, the simulation, with pages of two
def test_more_records_of_a_key_than_fit_a_row_wait_on_pages(stack: Stack) -> None:
    account, times = _account(stack), 2 * PAGE_RECORDS + 500
    offset = _poison(stack, account)
    counted = _counted(stack)
    _charge(stack, account, times)
    await_letter(stack, _id(account), offset=offset, behind=times)
    assert _counted(stack) == counted
    assert len(_rows_of(stack, account)) > times / PAGE_RECORDS
    assert max(map(len, _rows_of(stack, account))) < 20 * PAGE_RECORDS
    _kill_and_restart(stack)
    release(stack, _id(account), offset, behind=times)
    assert _balance(stack, account) == times * (times + 1) // 2
    assert not _rows_of(stack, account)


def test_an_operator_does_the_same_from_the_command_line(stack: Stack) -> None:
    account = _account(stack)
    offset = _poison(stack, account)
    _charge(stack, account, 2)
    await_letter(stack, _id(account), behind=2)
    assert f"{_id(account)}  offset {offset}, 2 behind, tried 1 times: message.unknown" in _command(stack, "list")
    assert "attempts   1" in _command(stack, "show", _id(account))
    _command(stack, "discard", _id(account), f"--offset={offset}", "--reason=it was a test")
    await_letter(stack, _id(account), behind=1)
    _command(stack, "retry", _id(account))
    await_letter(stack, _id(account))
    assert _balance(stack, account) == 3


@pytest.mark.parametrize("letter_id", ["accounts/3/nobody", "accounts/99/x", "nonsense"])
def test_an_id_under_which_nothing_is_parked_is_not_found(stack: Stack, letter_id: str) -> None:
    assert letter(stack, letter_id) is None


def _command(stack: Stack, verb: str, *arguments: str) -> str:
    ran = CliRunner().invoke(cli, ["dead-letters", verb, "accounts", *arguments, f"--url={stack.workers[1].url}"])
    assert ran.exit_code == 0, ran.output
    return ran.output


def _counted(stack: Stack) -> float:
    """How many keys are parked in all partitions, by the workers' metrics."""
    texts = [httpx.get(f"{worker.url}/metrics", timeout=10).text for worker in stack.workers_of("accounts")]
    counts = [float(n) for text in texts for n in re.findall(r"^onefold_parked_keys\{.*\} (.*)$", text, re.MULTILINE)]
    assert len(counts) == TOPOLOGY.partitions
    return sum(counts)


def _account(stack: Stack) -> str:
    name = f"parked-{uuid.uuid4()}"
    assert httpx.post(f"{stack.workers[0].url}/accounts/{name}", timeout=60).status_code == 201
    return name


def _rows_of(stack: Stack, account: str) -> list[bytes]:
    """What is parked of the account, in the changelog by now."""
    changelog = TOPOLOGY.changelog(TOPOLOGY.parked).name
    rows = {
        key: row for _, key, row in read_all(Brokers(stack.bootstrap), changelog) if account.encode() in (key or b"")
    }
    return [row for row in rows.values() if row is not None]


def _partition(name: str) -> int:
    return partition_of(name.encode(), TOPOLOGY.partitions)


def _id(name: str) -> str:
    return f"accounts/{_partition(name)}/{name}"


def _poison(stack: Stack, name: str) -> int:
    """A command of a later release, so its place is kept."""
    unknown = command(name, f"rob-{uuid.uuid4()}", "account.rob", {})
    return send(stack.bootstrap, _partition(name), name.encode(), unknown)


def _charge(stack: Stack, name: str, times: int) -> str:
    """Charges 1, 2, 3 … cents, so that the balance shows which were made; returns the position of the last charge."""
    bodies = [
        command(name, f"charge-{uuid.uuid4()}", "account.charge", {"amount_cents": amount})
        for amount in range(1, times + 1)
    ]
    offset = send(stack.bootstrap, _partition(name), name.encode(), *bodies)
    return f"{COMMANDS.name}/{_partition(name)}@{offset}"


def _balance(stack: Stack, name: str, position: str | None = None) -> int:
    params = {"min_position": position, "wait": "30"} if position else None
    read = httpx.get(f"{stack.workers[0].url}/accounts/{name}", params=params, timeout=60)
    assert read.status_code == 200, read.text
    return int(read.json()["balance_cents"])
