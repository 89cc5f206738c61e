"""Dead letters as an operator meets them: the record, the reason, and what is done, by whom and why."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import httpx
import pytest

from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import OperatorRequest
from shared.parking.requests import operator_requests
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.console.browser import Page
from tests.console.conftest import OPERATOR, check_everybody_can_use, opened
from tests.console.pictures import SCREENS
from tests.engine.parked import send
from tests.faults.load import command
from tests.waiting import eventually

SERVICE = TOPOLOGY.service
WHY = "the sender wrote more than one"
TWICE = "tried 2 times"
AMOUNT = "[9007199254740993, 10.0, 1e400]"  # JavaScript would keep none of them


def park(page: Page, stack: Stack) -> tuple[str, str]:
    """The ids of an account whose charge can't be read, and of that dead letter, which the page shows."""
    id_ = f"parked-{uuid4().hex[:8]}"
    assert httpx.post(f"{stack.urls(SERVICE)[0]}/accounts/{id_}", json={}, trust_env=False).status_code == 201
    partition = partition_of(id_.encode(), TOPOLOGY.partitions)
    bad = command(id_, f"charge-{id_}", "account.charge", {"amount_cents": "12"}).replace(b'"12"', AMOUNT.encode())
    offset = send(stack.bootstrap, partition, id_.encode(), bad)
    letter = f"accounts/{partition}/@{COMMANDS.name}@{offset}"
    eventually(lambda: page.texts(".letter h3 code"), lambda ids: letter in ids)
    return id_, letter


def open_letter(page: Page, letter: str) -> None:
    page.run(
        f"[...document.querySelectorAll('.letter button')].find(each => each.innerText.includes('{letter}')).click()"
    )
    eventually(lambda: page.text("dialog pre"), lambda text: text and "".join(AMOUNT.split()) in "".join(text.split()))


def press(page: Page, label: str) -> None:
    page.run(
        f"[...document.querySelectorAll('dialog button')].find(each => each.innerText.startsWith('{label}')).click()"
    )


def asked_of(stack: Stack, letter: str) -> Sequence[OperatorRequest]:
    return [each for each in operator_requests(Brokers(stack.bootstrap), TOPOLOGY) if each.id == letter]


def gone(page: Page, letter: str) -> None:
    eventually(lambda: page.texts(".letter h3 code"), lambda ids: letter not in ids)


def test_a_record_is_edited_and_takes_effect_with_other_data(page: Page, console: str, stack: Stack) -> None:
    opened(page, console)
    account, letter = park(page, stack)
    open_letter(page, letter)
    press(page, "edit it")
    eventually(
        lambda: page.run("document.querySelector('dialog textarea')?.value"), lambda text: text and "10.0" in text
    )
    page.fill("dialog textarea", '{"amount_cents": 12}')
    press(page, "decide it")
    eventually(lambda: page.text("dialog [role=status]"), lambda text: text and text.startswith("Say why first"))
    page.fill("dialog [name=why]", WHY)
    press(page, "decide it")
    eventually(lambda: page.text("dialog [role=status]"), lambda text: text and "has taken effect" in text)
    gone(page, letter)
    eventually(lambda: page.text("dialog .why"), lambda text: text and "is no longer parked" in text)
    assert page.run("[...document.querySelectorAll('dialog .mend button')].filter(each => !each.disabled).length") == 1
    url = f"{stack.urls(SERVICE)[0]}/accounts/{account}"
    eventually(lambda: httpx.get(url, trust_env=False).json()["balance_cents"], lambda cents: cents == 12)
    (request,) = asked_of(stack, letter)
    assert (request.action, request.by, request.reason) == ("correct", OPERATOR, WHY)
    press(page, "its story")
    eventually(lambda: page.texts("dialog .step b"), lambda steps: steps == ["account.charge", "account.charged"])
    page.press("Escape")


def test_who_retries_and_discards_and_why_is_kept(page: Page, console: str, stack: Stack) -> None:
    opened(page, console)
    _, letter = park(page, stack)
    open_letter(page, letter)
    page.fill("dialog [name=why]", WHY)
    press(page, "retry")
    eventually(lambda: page.text("dialog [role=status]"), lambda text: text and "is tried again" in text)
    listed = f"[...document.querySelectorAll('.letter')].find(each => each.innerText.includes('{letter}'))"
    eventually(lambda: page.run(f"{listed}?.querySelector('.why').innerText"), lambda text: text and TWICE in text)
    eventually(lambda: page.text("dialog .why"), lambda text: text and TWICE in text)
    press(page, "discard")
    gone(page, letter)
    assert [(each.action, each.by, each.reason) for each in asked_of(stack, letter)] == [
        (action, OPERATOR, WHY) for action in ("retry", "discard")
    ]
    told = page.text(".news [role=log]") or ""
    assert "is tried again" in told
    assert "is discarded" in told


@pytest.mark.parametrize("screen", SCREENS)
def test_everybody_can_mend(page: Page, console: str, stack: Stack, screen: str) -> None:
    opened(page, console, SCREENS[screen])
    _, letter = park(page, stack)
    open_letter(page, letter)
    press(page, "edit it")
    eventually(lambda: page.run("document.querySelector('dialog textarea') !== null"))
    check_everybody_can_use(page)
    page.fill("dialog [name=why]", "it was a test")
    press(page, "discard")
    gone(page, letter)
