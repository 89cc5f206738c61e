"""A mail server that takes what it is given, and sends nothing on."""

from __future__ import annotations

from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from types import MappingProxyType
from typing import Self

NO_SUCH = "nobody@example.org"


class Mailbox(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, answers: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """answers: by the command that gets it, in place of the usual one."""
        super().__init__(("127.0.0.1", 0), _Session)
        self.answers = answers
        self.mails: list[Message] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Session(StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self._say("220 mailbox")
        while line := self.rfile.readline():
            command = line.split()[0].upper()
            if command in self.server.answers:
                self._say(self.server.answers[command])
                continue
            match command:
                case b"DATA":
                    self._say("354 go on")
                    lines = [*iter(self.rfile.readline, b".\r\n")]
                    self.server.mails.append(message_from_bytes(b"".join(lines)))
                    self._say("250 taken")
                case b"RCPT" if NO_SUCH.encode() in line:
                    self._say("550 no such mailbox")
                case b"QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 yes")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())
