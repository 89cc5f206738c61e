"""The newest events as a person sees them, and the story of one."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest

from shared.dev.stack import Stack
from tests.accounts.topology import TOPOLOGY
from tests.console.browser import Page
from tests.console.conftest import check_everybody_can_use, opened
from tests.console.pictures import SCREENS
from tests.waiting import eventually

SERVICE = TOPOLOGY.service
SHORT_STREAMS = """
const real = fetch, counts = [10, 5000, 5000];
window.fetch = async (url, options) => {
  if (url !== "stream" || !counts.length) return real(url, options);
  const reader = (await real(url, options)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (!text.includes("\\n\\n")) text += (await reader.read()).value;
  await reader.cancel();
  const picture = JSON.parse(text.slice("data: ".length, text.indexOf("\\n\\n")));
  picture.newest.seen = counts.shift();
  return new Response(`data: ${JSON.stringify(picture)}\\n\\n`);
};
document.dispatchEvent(new Event("visibilitychange"))"""


NO_TURN = """
const turns = [429, 429], told = fetch;
window.fetch = async (url, options) => url.includes("/stories/") && turns.length
  ? new Response(JSON.stringify({detail: "1 stories are being answered here, 1 to you"}), {status: turns.pop()})
  : told(url, options);"""


def happened(stack: Stack) -> str:
    """The id of an account that was just opened, by a command that it names."""
    id_ = f"told-{uuid4().hex[:8]}"
    url = f"{stack.urls(SERVICE)[0]}/accounts/{id_}"
    answer = httpx.post(url, json={}, headers={"Idempotency-Key": f"key-{id_}"}, trust_env=False)
    assert answer.status_code == 201
    return id_


def test_an_event_is_seen_and_found_by_its_words(page: Page, console: str, stack: Stack) -> None:
    opened(page, console)
    id_, other = happened(stack), happened(stack)
    eventually(lambda: page.text(".tail table"), lambda text: text and id_ in text and other in text)
    page.fill(".tail [name=filter]", f"OPENED {id_}")
    eventually(lambda: page.texts(".tail td:nth-child(2)"), lambda keys: keys == [id_])
    assert "account.opened" in (page.text(".tail tbody th") or "")
    page.fill(".tail [name=filter]", "no such word")
    eventually(lambda: page.text(".tail .empty"), lambda text: text == "None has all of these words.")


def test_what_is_held_stands_still(page: Page, console: str, stack: Stack) -> None:
    opened(page, console)
    before = happened(stack)
    eventually(lambda: page.text(".tail table"), lambda text: text and before in text)
    page.click(".tail [aria-pressed]")
    later = happened(stack)
    eventually(lambda: page.text(".tail .hints"), lambda text: text and text.startswith("held, 1 more has come"))
    assert later not in (page.text(".tail table") or "")
    page.click(".tail [aria-pressed]")
    eventually(lambda: page.text(".tail table"), lambda text: text and later in text)


def test_what_another_worker_counted_did_not_come_too_fast(page: Page, console: str, stack: Stack) -> None:
    """Behind an ingress, the stream that follows one that ends may be of a worker that has looked for longer."""
    opened(page, console)
    happened(stack)
    eventually(lambda: page.text(".tail .hints"))
    page.run(SHORT_STREAMS)
    eventually(lambda: page.run("counts.length"), lambda left: left == 0)
    assert "too fast" not in (page.text(".tail .hints") or "")


def test_a_click_opens_the_story_that_the_api_tells(page: Page, console: str, stack: Stack) -> None:
    opened(page, console)
    id_ = happened(stack)
    page.fill(".tail [name=filter]", id_)
    eventually(lambda: page.text(".tail"), lambda text: text and id_ in text)
    page.click(".tail tbody button")
    told = eventually(
        lambda: httpx.get(f"{stack.urls(SERVICE)[0]}/stories/key-{id_}", trust_env=False, timeout=20),
        lambda answer: answer.is_success,
    )
    story = told.json()
    places = [f"{each['topic']}/{each['partition']}@{each['offset']}" for each in story["steps"]]
    eventually(lambda: page.texts("dialog .story td:last-child"), lambda shown: shown == places)
    assert page.texts("dialog .step b") == [each["type"] for each in story["steps"]]
    assert page.run("[...document.querySelectorAll('.story [data-depth]')].map(each => +each.dataset.depth)") == [
        each["depth"] for each in story["steps"]
    ]
    page.press("Escape")
    eventually(lambda: page.run("document.querySelector('dialog')"), lambda found: found is None)


def test_a_story_waits_for_its_turn(page: Page, console: str, stack: Stack) -> None:
    """All who look at one console are one client to a worker, which looks for one story of it at once."""
    opened(page, console)
    id_ = happened(stack)
    page.run(NO_TURN)
    eventually(lambda: page.text(".tail"), lambda text: text and id_ in text)
    page.click(".tail tbody button")
    eventually(lambda: page.text("dialog .story"))
    assert page.run("turns.length") == 0


@pytest.mark.parametrize("screen", SCREENS)
def test_everybody_can_read_a_story(page: Page, console: str, stack: Stack, screen: str) -> None:
    opened(page, console, SCREENS[screen])
    happened(stack)
    eventually(lambda: page.text(".tail table"))
    page.click(".tail tbody button")
    eventually(lambda: page.text("dialog .story"))
    check_everybody_can_use(page)
