"""Who is called: fails, hangs, and is killed by others. `python -m tests.effects.receiver PORT JOURNAL`.

Its journal has a line `target key number` for each call that had an effect; the number is the body's.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import ClassVar
from zlib import crc32

from shared.effects.webhook import signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HANGS_S = 4.0
ONE_IN = 40


class Journal:
    def __init__(self, file: Path) -> None:
        self._lines = file.open("a", buffering=1)
        self._keys = {line.split()[1] for line in file.read_text().splitlines()}
        self._lock = Lock()

    def note(self, target: str, key: str, number: int) -> None:
        with self._lock:
            if target == "keyed" and key in self._keys:
                return
            self._keys.add(key)
            self._lines.write(f"{target} {key} {number}\n")


class Handler(BaseHTTPRequestHandler):
    journal: Journal
    called: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        target, key = self.path.removeprefix("/"), self.headers["Idempotency-Key"]
        fault = None if key in self.called else crc32(key.encode()) % ONE_IN
        self.called.add(key)
        if not self._signed(body):
            self._answer(401)
        elif fault == 0:
            self._answer(503)
        elif fault == 1 and target == "keyed":
            time.sleep(HANGS_S)
        else:
            self.journal.note(target, key, json.loads(body)["number"])
            if fault == 2 and target == "keyed":
                time.sleep(HANGS_S)
            else:
                self._answer(204)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def _signed(self, body: str) -> bool:
        id_, at_s = self.headers["webhook-id"], int(self.headers["webhook-timestamp"])
        return self.headers["webhook-signature"] == signature(SECRET, id_, at_s, body)


if __name__ == "__main__":
    Handler.journal = Journal(Path(sys.argv[2]))
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        server.serve_forever()
