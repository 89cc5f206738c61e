"""README.md is true: its commands run, its answers are right."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.books import Books, expected_books
from demo.cdnow import read_purchases
from demo.report import happened
from demo.rules import DISCONTINUED, SKUS
from demo.shop import Found
from demo.story import Findings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PURCHASES = 700

EVENTS_OF = {"confirmed": 7, "account.order_limit_exceeded": 6, "inventory.discontinued": 3}
"""Events in all services, by an order's end; each account, delivery and discontinued item has one before any order."""

DEMO, TEST, CURL = "python3 dev.py demo", "python3 dev.py test", "curl "
if DEMO not in README:
    pytest.skip("README.md is not the template's", allow_module_level=True)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def books() -> Books:
    return expected_books(read_purchases())


@pytest.fixture(scope="module")
def screen() -> Iterator[list[str]]:
    """What `python3 dev.py demo` shows for a few purchases; it keeps running."""
    command = [sys.executable, *shlex.split(DEMO)[1:], "--purchases", str(PURCHASES)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout
        lines = []
        try:
            for line in demo.stdout:
                lines.append(line.rstrip())
                if line.startswith("  the logs "):  # the last of what it says to try
                    break
            else:
                raise AssertionError("\n".join(lines))
            yield lines
        finally:
            demo.send_signal(signal.SIGINT)
            rest = demo.stdout.read()
    assert (demo.returncode, rest.splitlines()[-1]) == (0, "stopping")


def test_every_command_is_run_by_a_test() -> None:
    assert [command for command in commands() if command not in (DEMO, TEST)] == [shown_curl()]


def test_the_command_that_ci_runs_is_shown() -> None:
    assert TEST in commands()


def test_the_output_shown_is_that_of_the_whole_file(books: Books) -> None:
    (shown,) = (block.splitlines() for block in blocks("text"))
    accounts = len(books.accounts)
    assert f"{len(books.orders):,} by {accounts:,} customers" in shown[0]
    events = accounts + len(SKUS) + len(DISCONTINUED) + sum(EVENTS_OF[end] for end in books.orders.values())
    first, *rest = happened(Findings(1.0, Found(books, events, []))).splitlines()
    assert first.split(" in ")[0] == shown[12].split(" in ")[0]
    assert shown[13:-3] == rest
    assert shown[-2:] == [
        f"Spark and the live tables agree: {accounts:,} of {accounts:,} accounts",
        f"verdict: ok {accounts} of {accounts} accounts agree",
    ]


def test_the_answer_shown_is_right(books: Books) -> None:
    answer = shown_answer()
    assert answer["balance_cents"] == books.accounts[str(answer["account_id"])]
    assert answer["held_cents"] == 0


@pytest.mark.broker
@pytest.mark.timeout(900)
def test_the_demo_says_what_the_readme_shows(screen: list[str]) -> None:
    (shown,) = blocks("text")
    assert shape(screen)[: len(shape(shown.splitlines()))] == shape(shown.splitlines())


def shape(lines: list[str]) -> list[str]:
    """Stages, findings and verdict by their first words, each once; the rest differs from run to run."""
    kept = [line for line in lines if "so far)" not in line]
    first_words = re.compile(r"\[ ?\d+/\d+\] \w+|\w+ {2,}|owe most|Spark and|verdict: ok")
    return list(dict.fromkeys(found[0] for line in kept if (found := first_words.match(line))))


@pytest.mark.broker
def test_the_curl_shown_gets_the_fields_shown(screen: list[str]) -> None:
    url = re.search(r"http://127\.0\.0\.1:\d+/accounts/", "\n".join(screen))
    assert url
    command = re.sub(r"http://127\.0\.0\.1:\d+/accounts/\d+", f"{url[0]}00020", shown_curl())
    answer = subprocess.run([*shlex.split(command), "-sS"], capture_output=True, text=True, check=True).stdout
    assert json.loads(answer).keys() == shown_answer().keys()


def shown_curl() -> str:
    (command,) = [command for command in commands() if command.startswith(CURL)]
    return command


def shown_answer() -> dict[str, object]:
    (block,) = blocks("json")
    answer: dict[str, object] = json.loads(block)
    return answer


def test_the_picture_is_well_formed() -> None:
    ET.parse(ROOT / "docs" / "flow.svg")
