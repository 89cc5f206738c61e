"""An issuer's token endpoint, on loopback."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

from shared.dev.issuer import DevIssuer

AUDIENCE = "kafka"


@contextmanager
def token_endpoint(
    issuer: DevIssuer, secret_of: Callable[[str], str], certificate: Path | None = None
) -> Iterator[str]:
    """Its URL. It gives a client with that secret a token for AUDIENCE, with the scope that it asks for, or another.

    certificate: with its key; behind TLS if there is one.
    """

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            client, _, secret = login.partition(":")
            given = asked["grant_type"] == "client_credentials" and secret == secret_of(client)
            token = issuer.token(AUDIENCE, asked.get("scope", "brokers").split(), client)
            answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600} if given else {"error": "no"}
            told = json.dumps(answer).encode()
            self.send_response(200 if given else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
