"""A TCP proxy that delays or holds back data, or cuts every connection."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from shared.dev.embedded import EmbeddedKafka

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST


class Proxy:
    """Accepts connections on loopback while it is entered. delayed: bytes that it has held back for `delay_s`."""

    def __init__(self, target: Callable[[], str]) -> None:
        """target: host:port, asked for at each connection."""
        self.delay_s = 0.0
        self.delayed = 0
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()

    @property
    def address(self) -> str:
        host, port = self._server.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread, as closing does not
        self._server.close()
        self.heal()
        self.cut()

    def hold(self) -> None:
        """From now on nothing passes; connections stay."""
        self._open.clear()

    def heal(self) -> None:
        self.delay_s = 0.0
        self._open.set()

    def cut(self) -> int:
        """Resets every connection and returns how many there were. New ones are accepted."""
        cut, self._sockets = self._sockets, set()
        for each in cut:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.shutdown(socket.SHUT_RD)  # wakes the reading thread, and sends nothing to the peer
            each.close()
        return len(cut) // 2

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                self._connect(self._server.accept()[0])

    def _connect(self, near: socket.socket) -> None:
        host, port = self._target().split(":")
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.close()
            return
        self._sockets.update((near, far))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._open.wait()
                delay_s = self.delay_s
                time.sleep(delay_s)
                sink.sendall(data)
                self.delayed += len(data) if delay_s else 0
        for each in (source, sink):
            each.close()
            self._sockets.discard(each)


def broker_behind(proxy: Proxy, root: Path) -> EmbeddedKafka:
    """A broker that all its clients reach by this proxy, with its files in `root`."""
    told = {"advertised.listeners": f"CLIENT://{proxy.address}"}
    return EmbeddedKafka(root / "data", root / "logs", properties=told)
