"""A page of docs as steps, for tests that follow it to the letter."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

from dev import module_and_arguments

_BLOCK = re.compile(r"(?:^`(?P<file>[\w./]+)`\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```\n", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """A file to write, a command to run, or the expected answer of the last command."""

    kind: Literal["file", "command", "answer"]
    name: str
    text: str


def steps(page: str) -> Iterator[Step]:
    for block in _BLOCK.finditer(page):
        if block["file"]:
            yield Step("file", block["file"], block["text"])
        elif block["kind"] == "sh":
            yield from (Step("command", line, "") for line in block["text"].splitlines())
        else:
            yield Step("answer", block["kind"], block["text"])


def program_of(command: str) -> list[str]:
    """What to run for it, without its comment; `python3 dev.py` without its first step, making a .venv."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "python3":
        assert arguments.pop(0) == "dev.py"
        return [sys.executable, "-m", *module_and_arguments(arguments)]
    assert program in ("curl", "rm", "touch")
    return [program, *arguments]
