"""What is measured of the page is what its viewers are sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench import cost
from bench.begin import numbered
from bench.lab import Lab
from bench.speed import Load


class Stream(BaseHTTPRequestHandler):
    """Sends pictures with the numbers 0, 1, 2 … until its reader goes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for number in range(1_000_000):
            try:
                self.wfile.write(b'data: {"number": %d}\n\n: ping\n\n' % number)
            except OSError:
                return

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stream)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


def test_a_viewer_is_told_when_the_first_picture_with_something_came(url: str) -> None:
    with cost._viewers(url, 2), cost._frames(url) as seen:
        first = seen.await_first(lambda picture: picture["number"] >= 3)
        assert seen.await_first(lambda picture: picture["number"] == 3) == first
        assert seen.await_first(lambda picture: picture["number"] == 5) >= first


@pytest.mark.broker
@pytest.mark.long  # real workers and a page for two minutes; above is what it is made of
def test_the_page_is_measured_beside_the_workers(tmp_path: Path) -> None:
    with Lab(tmp_path) as lab:
        report = cost.cost(lab, numbered(), Load(1, 1, 1, 1))
    assert [*report.ratios] == [
        f"{kind}_{one}_vs_{off}"
        for off, others in (
            ("viewers_0", ("viewers_5", "ui_viewers_5", "scraped")),
            ("untraced", ("traced_0", "traced_1_percent")),
        )
        for one in others
        for kind in ("decided", "cpu")
    ]
    assert report.result("event_to_frame").figures["events"] == cost.EVENTS
    assert report.result("take_over_to_frame").figures.keys() == {"ms"}
