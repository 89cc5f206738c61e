"""The caller over HTTP notices an answer without its own write, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.faults.load import HttpLoad
from tests.waiting import eventually

WRITTEN = 5


@contextmanager
def worker(status: int, sequence: int) -> Iterator[str]:
    """Accepts every command as event 5; answers every read as told."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer(201, WRITTEN)

        def do_GET(self) -> None:
            assert "min_position=accounts.commands.v1/0%401" in self.path
            self._answer(status, sequence)

        def log_message(self, *_: object) -> None: ...

        def _answer(self, status: int, sequence: int) -> None:
            self.send_response(status)
            self.send_header("Onefold-Position", "accounts.commands.v1/0@1")
            self.end_headers()
            self.wfile.write(json.dumps({"sequence": sequence}).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def loaded(status: int, sequence: int) -> HttpLoad:
    """The client after some answers."""
    with worker(status, sequence) as url:
        load = HttpLoad(lambda: [url], seed=1)
        load.start()
        eventually(lambda: len(load.answers), lambda answers: answers > 3)
        load.end()
    return load


@pytest.mark.parametrize("sequence", [WRITTEN, WRITTEN + 1])
def test_an_answer_with_the_write_is_fresh(sequence: int) -> None:
    load = loaded(200, sequence)
    assert load.fresh
    assert not load.stale


@pytest.mark.parametrize(("status", "sequence"), [(200, WRITTEN - 1), (404, 0)])
def test_an_answer_without_the_write_is_stale(status: int, sequence: int) -> None:
    assert loaded(status, sequence).stale


def test_no_answer_is_not_stale() -> None:
    load = loaded(503, 0)
    assert not load.fresh
    assert not load.stale
