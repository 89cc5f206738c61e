"""A worker listens on its HTTP port and nowhere else, whatever Faust would like to serve."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shared.dev.stack import Stack

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

LISTENING = "0A"
LOOPBACK = "0100007F"


def test_a_worker_listens_on_its_http_port_only(stack: Stack) -> None:
    for worker in stack.workers_of("accounts")[:2]:
        assert _listening(worker.pid) == {(LOOPBACK, int(worker.url.rpartition(":")[2]))}


def _listening(pid: int) -> set[tuple[str, int]]:
    """(address, port) of every TCP socket this process listens on, as the kernel spells them."""
    sockets = {link for link in map(_target, Path(f"/proc/{pid}/fd").iterdir()) if link.startswith("socket:")}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    local = [row[1].split(":") for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in sockets]
    return {(address, int(port, 16)) for address, port in local}


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""
