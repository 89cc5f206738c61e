"""Follows docs/tutorials/changing-a-running-service.md to the letter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.dev.worker import free_port
from tests.scaffold.conftest import copied
from tests.tutorials.reader import Block, Reader, answer_of, apply, blocks, up

PAGE = blocks("changing-a-running-service.md")
UP = "python3 dev.py up tickets"


def test_every_block_of_the_tutorial_is_carried_out() -> None:
    assert {language for language, _ in PAGE} == {"diff", "sh", "json", "text"}
    assert [text for _, text in PAGE].count(f"{UP}\n") == 1


@pytest.mark.broker
@pytest.mark.timeout(900)
def test_a_running_service_is_changed_as_the_tutorial_says(tmp_path: Path) -> None:
    root = copied(tmp_path).root
    start = PAGE.index(("sh", f"{UP}\n"))
    follow(Reader(root, {}), PAGE[:start])
    with up(root, UP) as urls:
        reader = Reader(root, {**urls, "next": f"http://127.0.0.1:{free_port()}"})
        try:
            follow(reader, PAGE[start + 1 :])
        finally:
            reader.end()


def follow(reader: Reader, blocks: Sequence[Block]) -> None:
    for (language, text), following in zip(blocks, [*blocks[1:], None], strict=True):
        if language == "diff":
            apply(reader.root, text)
        elif language == "sh":
            reader.do(text, answer_of(following))
