"""A stand-in for a worker: `fake_worker.py BEHAVIOUR`; port and instance come from the environment.

ready: answers at once. starting: never becomes ready. crashing: ends at once, until the folder of its stores
has a file `mended`. stubborn: ignores SIGTERM.
"""

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

BEHAVIOUR = sys.argv[1]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if BEHAVIOUR == "starting" else 200)
        self.end_headers()
        self.wfile.write("".join(f"{name}={value}\n" for name, value in os.environ.items()).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if BEHAVIOUR == "crashing" and not Path(os.environ["ONEFOLD_DATA_DIR"], "mended").exists():
    sys.exit("the fake worker has no reason to live")
if BEHAVIOUR == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
HTTPServer(("127.0.0.1", int(os.environ["ONEFOLD_HTTP_PORT"])), Handler).serve_forever()
