"""The courier whom the demo's shop calls outside for large orders, by signed webhooks. It notes each call."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from shared.effects.webhook import signature

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Courier(ThreadingHTTPServer):
    """Listens on loopback until `stop`. orders: those for which it was called, by key, so that a repeat is none."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.orders: dict[str, str] = {}
        self._thread = Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def variables(self) -> Mapping[str, str]:
        """Where the runner finds it."""
        url = f"http://127.0.0.1:{self.server_port}/pickups"
        return {"PICKUPS_COURIER_URL": url, "PICKUPS_COURIER_SECRET": _SECRET}

    def differences(self, expected: Collection[str]) -> Iterator[str]:
        """expected: the orders for which it should have been called, each once."""
        called = sorted(self.orders.values())
        if called != sorted(expected):
            yield f"the courier was called for {len(called)} orders where {len(expected)} are large: {called[:3]}"

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Call(BaseHTTPRequestHandler):
    server: Courier

    def do_POST(self) -> None:
        body, key = self.rfile.read(int(self.headers["Content-Length"])).decode(), self.headers["webhook-id"]
        signed = signature(_SECRET, key, int(self.headers["webhook-timestamp"]), body)
        if is_ours := signed == self.headers["webhook-signature"]:
            self.server.orders[key] = json.loads(body)["data"]["order_id"]
        self.send_response(204 if is_ours else 401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
