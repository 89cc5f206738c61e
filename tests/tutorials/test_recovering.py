"""Follows docs/tutorials/recovering-from-a-bug.md to the letter."""

from __future__ import annotations

import json
import time
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
from tests.tutorials.reader import DEADLINE_S, UP, Reader, answer_of, apply, blocks, up
from tests.waiting import Deadline

PAGE = blocks("recovering-from-a-bug.md")
LEVELS = INVENTORY.changelog(INVENTORY.tables[1]).name


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
    assert {language for language, _ in PAGE} == {"diff", "sh", "json", "text"}
    assert PAGE[1] == ("sh", f"{UP}\n")


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_the_bug_is_seen_and_repaired_as_the_tutorial_says(tmp_path: Path) -> None:
    root = copied(tmp_path).root
    (_, bug), _, *rest = PAGE
    apply(root, bug)
    before: dict[str, list[MemoryRecord]] = {}
    with up(root, ORDERS_DEADLINE_S="3600") as urls:  # else an order's timer would write meanwhile
        record = running(root / ".onefold" / "up")
        assert record is not None
        bootstrap = record.settings["ONEFOLD_BOOTSTRAP"]
        reader = Reader(root, urls)
        for (language, text), following in zip(rest, [*rest[1:], None], strict=True):
            if language == "diff":
                apply(root, text)
                before = log(bootstrap)
            elif language == "sh":
                if "stop inventory" in text:
                    await_quiet(bootstrap)
                reader.do(text, answer_of(following))
        assert log(bootstrap) == before
        assert len(before["inventory.events.v1"]) == 3
        assert [json.loads(said.value)["state"]["physical"] for said in read(bootstrap, LEVELS)][-1:] == [1]
