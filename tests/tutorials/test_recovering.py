"""Follows docs/tutorials/recovering-from-a-bug.md to the letter in a copy of the checkout.

Diffs are applied and commands run; the answer must be the one below the command. A GET is repeated until it is. The
ports are those that `up` prints, and `dev.py` runs with this interpreter's packages instead of making a `.venv`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.inventory.topology import EVENTS
from services.inventory.topology import TOPOLOGY as INVENTORY
from shared.dev.up import running
from shared.kafka.offsets import Offsets
from shared.operations.provision import load_topologies
from shared.runtime.positions import Place
from shared.testing.conversation import MemoryRecord
from tests.scaffold.conftest import copied
from tests.shop.market import read
from tests.waiting import Deadline

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "recovering-from-a-bug.md"
DEADLINE_S = 120.0
UP = "python3 dev.py up"
DEV = f"{sys.executable} -P -m shared.dev.cli"
LEVELS = INVENTORY.changelog(INVENTORY.tables[1]).name

Block = tuple[str, str]
"""Language and text."""


def blocks() -> list[Block]:
    return re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody at a terminal who carries out one block after the other."""

    def __init__(self, root: Path, urls: dict[str, str]) -> None:
        self.root = root
        self._urls = urls
        self._known: list[str] = []

    def do(self, commands: str, answer: Block | None) -> None:
        *first, last = commands.splitlines()
        for line in first:
            self._run(line)
        deadline = Deadline(DEADLINE_S)
        while not _agrees(said := self._run(last, answer), answer):
            assert "curl" in last, said
            deadline.check(said)
            time.sleep(0.5)

    def _run(self, line: str, answer: Block | None = None) -> str:
        if line.startswith(("export ", "post()")):
            self._known.append(re.sub(r"(\w+)=http://127\.0\.0\.1:\d+", lambda found: self._export(found[1]), line))
            return ""
        script = "\n".join([*self._known, line.replace("python3 dev.py", DEV)])
        run = subprocess.run(
            ["bash", "-c", script], cwd=self.root, env=_environment(self.root), capture_output=True, text=True
        )
        assert answer or run.returncode == 0, run.stdout + run.stderr
        return run.stdout + run.stderr

    def _export(self, name: str) -> str:
        return f"{name}={self._urls[name.lower()]}"


def _environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def _agrees(said: str, answer: Block | None) -> bool:
    """A JSON answer may have more fields than are shown; … stands for any lines."""
    if answer is None:
        return True
    language, text = answer
    if language == "json":
        return _holds(json.loads(said), json.loads(text)) if said.startswith("{") else False
    shown = "".join(r"(.*\n)*" if line == "…" else re.escape(line) + r"\n" for line in text.splitlines())
    return re.fullmatch(shown, said) is not None


def _holds(found: object, shown: object) -> bool:
    if isinstance(shown, dict) and isinstance(found, dict):
        return all(_holds(found.get(name), value) for name, value in shown.items())
    return found == shown


@contextmanager
def up(root: Path) -> Iterator[dict[str, str]]:
    """The first terminal: runs `up` for the duration of the block; yields a URL of each service."""
    command = [*DEV.split(), *UP.split()[2:]]
    environment = _environment(root) | {"ORDERS_DEADLINE_S": "3600"}  # else an order's timer would write meanwhile
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            yield dict(re.findall(r"^(\w+)-1 +(http://[\d.:]+)/docs$", "".join(lines), re.MULTILINE))
        finally:
            process.terminate()


def apply(root: Path, diff: str) -> None:
    subprocess.run(["patch", "-p1"], cwd=root, input=diff, text=True, check=True, capture_output=True)


def log(bootstrap: str) -> dict[str, list[MemoryRecord]]:
    """Every record of every topic except changelogs."""
    topics = (topic for each in load_topologies() for topic in (*each.topics, each.dead_letters))
    return {topic.name: read(bootstrap, topic.name) for topic in topics}


def await_quiet(bootstrap: str) -> None:
    """Until inventory has committed its position behind the last marker, as it has when a person has read on."""
    offsets, places = Offsets(bootstrap), [Place(EVENTS.name, number) for number in range(INVENTORY.partitions)]
    ends = offsets.ends(places)
    deadline = Deadline(DEADLINE_S)
    while (committed := offsets.committed(INVENTORY.group, places)) != ends:
        deadline.check(f"committed {committed} of {ends}")
        time.sleep(0.5)


def test_every_block_of_the_tutorial_is_carried_out() -> None:
    assert {language for language, _ in blocks()} == {"diff", "sh", "json", "text"}
    assert blocks()[1] == ("sh", f"{UP}\n")


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_the_bug_is_seen_and_repaired_as_the_tutorial_says(tmp_path: Path) -> None:
    root = copied(tmp_path).root
    (_, bug), _, *rest = blocks()
    apply(root, bug)
    before: dict[str, list[MemoryRecord]] = {}
    with up(root) as urls:
        record = running(root / ".onefold" / "up")
        assert record is not None
        bootstrap = record.settings["ONEFOLD_BOOTSTRAP"]
        reader = Reader(root, urls)
        for (language, text), answer in zip(rest, [*rest[1:], None], strict=True):
            if language == "diff":
                apply(root, text)
                before = log(bootstrap)
            elif language == "sh":
                if "stop inventory" in text:
                    await_quiet(bootstrap)
                reader.do(text, answer if answer and answer[0] in ("json", "text") else None)
        assert log(bootstrap) == before
        assert len(before["inventory.events.v1"]) == 3
        assert [json.loads(said.value)["state"]["physical"] for said in read(bootstrap, LEVELS)][-1:] == [1]
