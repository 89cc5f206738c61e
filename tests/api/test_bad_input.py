"""Bad input is answered with a 4xx problem+json and changes nothing, and the worker goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from shared.http.limits import MAX_BODY_BYTES
from tests.api.client import JSON, Client

pytestmark = pytest.mark.broker

CHUNK = b"a" * 65_536
ENDLESS_BYTES = 64 * 2**20


@pytest.fixture(autouse=True)
def _account_stays_unchanged(workers: Sequence[Client], open_account: str) -> Iterator[None]:
    before = workers[0].get(open_account)
    yield
    for worker in workers:
        after = worker.get(open_account)
        assert (after.status, after.body) == (200, before.body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"amount_cents": 1} x',
        b'{"amount_cents": 1, "currency": "EUR"}',
        b'{"amount": 1}',
        b'{"amount_cents": null}',
        b'{"amount_cents": true}',
        b'{"amount_cents": "1"}',
        b'{"amount_cents": [1]}',
        b'{"amount_cents": 1.5}',
        b'{"amount_cents": 1.0}',
        b'{"amount_cents": 1e3}',
        b'{"amount_cents": NaN}',
        b'{"amount_cents": -Infinity}',
        b'{"amount_cents": 9223372036854775808}',
        b'{"amount_cents": ' + b"9" * 5000 + b"}",
        b'{"amount_cents": 1}\xff',
        b"\xff\xfe",
        b'{"\\ud800": 1}',
        b"[" * 100_000,
        b'{"a":' * 40_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_bad_body_is_refused(workers: Sequence[Client], open_account: str, body: bytes) -> None:
    answers = [worker.post(f"{open_account}/charges", body) for worker in workers]
    assert [(answer.status, answer.code) for answer in answers] == [(422, "request.invalid")] * 2
    assert answers[0].body == answers[1].body


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""])
def test_a_body_without_a_json_content_type_is_refused(workers: Sequence[Client], open_account: str, kind: str) -> None:
    for worker in workers:
        assert worker.post(f"{open_account}/charges", {"amount_cents": 1}, Content_Type=kind).code == "request.invalid"


@pytest.mark.parametrize(
    "instant",
    ["yesterday", "2024-01-01", "2024-01-01T00:00:00", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"],
)
def test_a_bad_occurred_at_is_refused(workers: Sequence[Client], open_account: str, instant: str) -> None:
    for worker in workers:
        answer = worker.post(f"{open_account}/charges", {"amount_cents": 1}, Occurred_At=instant)
        assert (answer.status, answer.code) == (422, "request.invalid")


@pytest.mark.parametrize("path", ["", "/charges", "/closure"])
def test_a_body_over_the_limit_is_refused(workers: Sequence[Client], open_account: str, path: str) -> None:
    for worker in workers:
        answer = worker.post(open_account + path, b" " * (MAX_BODY_BYTES + 1))
        assert (answer.status, answer.code) == (413, "request.too_large")


def test_a_body_at_the_limit_is_read(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        answer = worker.post(f"{open_account}/charges", b'{"amount_cents": 0}'.ljust(MAX_BODY_BYTES))
        assert answer.code == "account.amount_not_positive"


@pytest.mark.parametrize("path", ["", "/charges", "/closure"])
def test_a_chunked_body_over_the_limit_is_refused_before_it_ends(
    workers: Sequence[Client], open_account: str, path: str
) -> None:
    for worker in workers:
        status, sent_bytes = _send_without_end(worker, open_account + path)
        assert status == 413
        assert sent_bytes < ENDLESS_BYTES


def test_a_chunked_body_within_the_limit_is_read(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        chunks = iter([b'{"amount', b'_cents": 0', b"}"])
        answer = worker.ask("POST", f"{open_account}/charges", chunks, JSON)
        assert answer.code == "account.amount_not_positive"


def test_a_wrong_method_is_refused(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        assert worker.ask("DELETE", open_account, None, {}).code == "method_not_allowed"


def test_a_client_that_disconnects_midway_changes_nothing(workers: Sequence[Client], open_account: str) -> None:
    for worker in workers:
        with _connected(worker) as connection:
            connection.sendall(_head(f"{open_account}/charges", "Content-Length: 30") + b'{"amount_cents": 5}')
        later = worker.ask("POST", f"{open_account}/charges", b'{"amount_cents": 0}', JSON)  # is decided after it
        assert later.code == "account.amount_not_positive"


def _send_without_end(worker: Client, path: str) -> tuple[int, int]:
    """Sends an endless chunked body until it is answered: (status, bytes sent)."""
    sent_bytes = 0
    with _connected(worker) as connection:
        connection.sendall(_head(path, "Transfer-Encoding: chunked"))
        with suppress(ConnectionError):
            while sent_bytes < ENDLESS_BYTES:
                connection.sendall(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
                sent_bytes += len(CHUNK)
        return int(connection.recv(64).split()[1]), sent_bytes


def _head(path: str, framing: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: worker\r\nContent-Type: application/json\r\n{framing}\r\n\r\n".encode()


def _connected(worker: Client) -> socket.socket:
    host, _, port = worker.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60.0)
