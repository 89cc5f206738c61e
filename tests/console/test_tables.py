"""Rows as a person finds them: a search is the HTTP query, and a row is beside its events, now and in its past."""

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
CHARGES = (500, 20, 3)
FIELDS = """Object.fromEntries([...document.querySelectorAll(".entity .fields div")].map(
  each => [each.querySelector("dt").innerText, each.querySelector("dd").firstChild.textContent]))"""


@pytest.fixture(scope="module")
def account(stack: Stack) -> str:
    """Its id: opened like two others, and charged thrice."""
    id_ = f"seen-{uuid4().hex[:8]}"
    url = f"{stack.urls(SERVICE)[0]}/accounts/{id_}"
    for each in ("-a", "-b", ""):
        assert httpx.post(url + each, json={}, trust_env=False).status_code == 201
    for cents in CHARGES:
        assert httpx.post(f"{url}/charges", json={"amount_cents": cents}, trust_env=False).status_code == 201
    return id_


def search(page: Page, target: str) -> None:
    page.fill("[name=target]", target)
    page.run("document.querySelector('.tables form').requestSubmit()")


def open_row(page: Page, account: str) -> None:
    owed = sum(CHARGES)  # no more, as a page has not all that other tests have charged
    search(page, f"/accounts?balance_cents_min={owed}&balance_cents_max={owed}&limit=500")
    eventually(lambda: page.text(f"[data-key='{account}']"))
    page.click(f"[data-key='{account}'] button")
    eventually(lambda: page.run(FIELDS).get("sequence"), lambda text: text == "4")


def test_a_search_is_the_http_query(page: Page, console: str, stack: Stack, account: str) -> None:
    opened(page, console)
    eventually(lambda: page.texts(".tables .hints button"), lambda names: names == ["accounts"])
    assert page.run("document.querySelector('.tables select').value") == SERVICE
    target = "/accounts?phase=open&order=-balance_cents&limit=2"
    search(page, target)
    told = httpx.get(stack.urls(SERVICE)[0] + target, trust_env=False).json()["items"]
    keys = [each["account_id"] for each in told]
    eventually(lambda: page.texts(".rows tbody th"), lambda shown: shown == keys)
    assert page.text(".tables .command code") in [f"curl '{url}{target}'" for url in stack.urls(SERVICE)]
    page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as by plain http from elsewhere
    page.click(".tables .command button")
    eventually(lambda: page.text(".tables .command button"), lambda text: text == "selected")
    assert page.run("String(getSelection())") == page.text(".tables .command code")
    assert page.texts(".rows thead th") == list(told[0])
    page.click(".tables > button")  # more
    eventually(lambda: page.texts(".rows tbody th"), lambda shown: len(shown) > 2 and shown[:2] == keys)
    search(page, "/accounts?limit=nonsense")
    eventually(lambda: page.text(".tables .problem"), lambda text: text and text.startswith("422 query.limit"))


def test_a_row_is_beside_its_events_and_a_slider_goes_through_its_past(
    page: Page, console: str, stack: Stack, account: str
) -> None:
    opened(page, console)
    open_row(page, account)
    assert page.run(FIELDS)["balance_cents"] == str(sum(CHARGES))
    events = [f"{n} account.{'charged' if n > 1 else 'opened'}" for n in range(1, 5)]
    eventually(lambda: page.texts(".events .link"), lambda shown: shown == events)
    page.run("document.querySelector('.slider [type=range]').focus()")
    for _ in range(2):
        page.press("ArrowLeft")
    then = httpx.get(f"{stack.urls(SERVICE)[0]}/accounts/{account}?as_of=2", trust_env=False).json()
    eventually(lambda: page.run(FIELDS)["balance_cents"], lambda text: text == str(then["balance_cents"]))
    assert page.text(".events [aria-current] .link") == events[1]
    eventually(
        lambda: page.texts(".fields .changed dt"), lambda changed: sorted(changed) == ["balance_cents", "sequence"]
    )
    assert "as_of=2'" in (page.text(".entity .command code") or "")
    page.click(".events li:first-child .link")
    eventually(lambda: page.run(FIELDS)["balance_cents"], lambda text: text == "0")


def test_what_happens_now_moves_the_row_that_is_shown(page: Page, console: str, stack: Stack, account: str) -> None:
    opened(page, console)
    open_row(page, account)
    url = f"{stack.urls(SERVICE)[0]}/accounts/{account}"
    assert httpx.post(f"{url}/payments", json={"amount_cents": 1}, trust_env=False).status_code == 201
    eventually(lambda: page.run(FIELDS)["balance_cents"], lambda text: text == str(sum(CHARGES) - 1))
    httpx.post(f"{url}/charges", json={"amount_cents": 1}, trust_env=False)


@pytest.mark.parametrize("screen", SCREENS)
def test_everybody_can_search(page: Page, console: str, account: str, screen: str) -> None:
    opened(page, console, SCREENS[screen])
    search(page, "/accounts?limit=5")
    eventually(lambda: page.text(".rows"))
    page.click(".rows tbody button")
    eventually(lambda: page.text(".entity .events"))
    check_everybody_can_use(page)


def test_large_numbers_are_shown_and_sent_as_they_are(page: Page, console: str) -> None:
    opened(page, console)
    text = '{"largest":9223372036854775807,"least":-9223372036854775808,"part":0.1}'
    assert page.run(f"import('/static/ask.js').then(({{parsed}}) => JSON.stringify(parsed('{text}')))") == text
