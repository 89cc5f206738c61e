"""The demo as a person runs it, on few purchases: to its end, tampered with, and interrupted."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from demo.books import expected_books
from demo.cdnow import Purchase, read_purchases
from demo.run import STAGES

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

FEW, CUSTOMERS = 700, 681
TAMPERED = f"""
from dataclasses import replace
from demo import shop, spark
from demo.books import expected_books
from demo.run import run

def tampered(purchases):
    right.append(expected_books(purchases))
    return replace(right[0], accounts=right[0].accounts | {{"00189": 1}})

async def found_when_settled(self, _):
    return await found_as(self, right[0])

right, found_as, shop.Shop.found_as = [], shop.Shop.found_as, found_when_settled
shop._SETTLED_S = 60.0
spark.parity = lambda _: spark.left_out("another test has it")
print(run({FEW}, stay=True, expect=tampered).line)
"""


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def read_until(process: subprocess.Popen[str], start: str) -> list[str]:
    """The lines up to the one that begins with `start`."""
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(start):
            return lines
    raise AssertionError("\n".join(["the demo ended early", *lines]))


def urls_in(lines: list[str]) -> set[str]:
    return set(re.findall(r"http://127\.0\.0\.1:\d+", "\n".join(lines)))


def listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz", timeout=5)
    except httpx.ConnectError:
        return False
    return True


@pytest.mark.long  # every run tests the README's demo, which goes through a crash, too
def test_the_demo_survives_a_crash_and_reaches_its_verdict() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--ci", "--purchases", str(FEW)], capture_output=True, text=True, timeout=600
    )
    lines = run.stdout.splitlines()
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    stages = [re.fullmatch(r"\[ ?(\d+)/11\] (\w+) .* \(\d+\.\d s\)", line) for line in lines]
    assert [stage[1] for stage in stages if stage] == [str(number) for number in range(1, STAGES + 1)]
    assert any("SIGKILL to orders-1" in line for line in lines)
    ends = Counter(expected_books(first(FEW)).orders.values())
    assert f"confirmed  {ends['confirmed']:,}" in lines
    assert f"rejected   {ends['account.order_limit_exceeded']:,} with account.order_limit_exceeded" in lines
    assert "couriers   7 called, one for each order of $150.00 or more" in lines
    assert lines[-2] == f"Spark and the live tables agree: {CUSTOMERS} of {CUSTOMERS} accounts"
    assert lines[-1] == f"verdict: ok {CUSTOMERS} of {CUSTOMERS} accounts agree"
    assert not any(map(listens, urls_in(lines)))


@pytest.mark.long  # in short, test_verdict has a wrong balance, and the README's demo runs until Ctrl-C
def test_a_wrong_balance_fails_and_the_demo_keeps_running_until_ctrl_c() -> None:
    with started("-c", TAMPERED) as process:
        lines = read_until(process, "  the logs")
        owed = expected_books(first(FEW)).accounts["00189"]
        assert f"verdict: FAILED 1 of {CUSTOMERS} accounts differ: 00189 has {owed} where the file says 1" in lines
        assert_its_curls_work(lines)
        assert_there_is_only_one()
        process.send_signal(signal.SIGINT)
        assert process.stdout
        assert process.stdout.read().startswith("stopping\nverdict: FAILED")
    assert not any(map(listens, urls_in(lines)))


def first(count: int) -> list[Purchase]:
    return sorted(read_purchases(), key=lambda purchase: purchase.date)[:count]


def assert_its_curls_work(lines: list[str]) -> None:
    shown, answer = next((line[2:], lines[number + 1]) for number, line in enumerate(lines) if line.startswith("$ "))
    assert curl(shown) == answer
    suggested = [re.sub(r"^  .*?  +(?=curl)", "", line) for line in lines if re.match(r"  .*  curl ", line)]
    order, outcome, cost, best, cluster = suggested
    assert curl(order) == curl(order)
    assert '"phase":"confirmed"' in curl(outcome)
    assert curl(cost).startswith('{"account_id":')
    assert curl(best).count('"sku":') == 3
    assert '"owners"' in curl(cluster)


def curl(command: str) -> str:
    return subprocess.run([*shlex.split(command), "-sS"], capture_output=True, text=True, check=True).stdout


def assert_there_is_only_one() -> None:
    run = subprocess.run([sys.executable, "-m", "demo", "--ci"], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stdout.splitlines()[-1] == "verdict: FAILED a demo of this checkout runs already"


@pytest.mark.long  # in short, `up` that was killed, in tests/dev
def test_a_demo_ended_midway_leaves_nothing_running() -> None:
    with started("-m", "demo", "--ci", "--purchases", str(FEW)) as process:
        lines = read_until(process, "[ 4/11]")
        process.send_signal(signal.SIGTERM)
        assert process.stdout
        rest = process.stdout.read()
        assert process.wait() == 1
    assert re.fullmatch(r"\[ 5/11\] http       interrupted .*\nverdict: FAILED interrupted\n", rest)
    assert not any(map(listens, urls_in(lines)))
