"""Kafka Connect reads a service's topics as they are, with the settings that docs/outside.md names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from shared.dev.worker import free_port
from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.runtime.checkout import CHECKOUT
from shared.runtime.child import Child
from shared.runtime.jars import KAFKA_JARS, MIRROR_JARS, fetch_jars
from shared.runtime.java import find_java
from tests.accounts.topology import EVENTS
from tests.sinks.outside import Log
from tests.waiting import eventually

FILE_SINK = Path(__file__).with_name("connect-file-4.1.2.jars")
PAGE = CHECKOUT / "docs" / "outside.md"


def properties(folder: Path, bootstrap: str) -> list[Path]:
    """The page's two files, with this test's broker and file."""
    ours = {"localhost:9092": bootstrap, "/tmp/": f"{folder}/", "8083": str(free_port())}
    files = []
    for name, text in re.findall(r"```properties\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for theirs, own in ours.items():
            text = text.replace(theirs, own)
        files.append(folder / name)
        files[-1].write_text(text)
    return files


@pytest.mark.broker
@pytest.mark.long  # it is Kafka's own: what is ours, that records are JSON under plain keys, others show
def test_a_sink_of_kafka_connect_writes_each_committed_event(bootstrap: str, log: Log, tmp_path: Path) -> None:
    log.write(500)
    log.write(100, abort=True)
    java, jars = find_java(), [*fetch_jars(KAFKA_JARS), *fetch_jars(MIRROR_JARS), *fetch_jars(FILE_SINK)]
    connect = [*java.kafka(jars), "org.apache.kafka.connect.cli.ConnectStandalone"]
    child = Child([*connect, *map(str, properties(tmp_path, bootstrap))], tmp_path / "connect.log", tmp_path)
    try:
        log.write(500)
        wanted = Counter((value or b"").decode() for _, _, value in read_all(Brokers(bootstrap), EVENTS.name))
        written = tmp_path / "accounts.jsonl"
        eventually(lambda: Counter(written.read_text().splitlines() if written.exists() else []), wanted.__eq__)
    finally:
        child.kill()
