"""An issuer's token endpoint, on loopback."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

from shared.dev.issuer import DevIssuer

AUDIENCE = "kafka"


@contextmanager
def token_endpoint(issuer: DevIssuer, secret_of: Callable[[str], str]) -> Iterator[str]:
    """Its URL. It gives a client with that secret a token for AUDIENCE, with the scope that it asks for, or another."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            client, _, secret = login.partition(":")
            given = asked["grant_type"] == "client_credentials" and secret == secret_of(client)
            token = issuer.token(AUDIENCE, asked.get("scope", "brokers").split(), client)
            answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600} if given else {"error": "no"}
            self.send_response(200 if given else 401)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
