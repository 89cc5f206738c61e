"""The page that a worker serves of its own service: the same figures, and what the API allows."""

from __future__ import annotations

import httpx
import pytest

from shared.dev.stack import Stack
from tests.accounts.topology import TOPOLOGY
from tests.console.browser import Page, Screen
from tests.console.conftest import check_everybody_can_use, opened
from tests.console.pictures import SCREENS
from tests.console.test_letters import gone, open_letter, park, press
from tests.console.test_page import owners_seen, owners_told
from tests.waiting import eventually

SERVICE = TOPOLOGY.service


@pytest.fixture
def own(stack: Stack) -> str:
    """The address of a worker's page."""
    return f"{stack.urls(SERVICE)[0]}/ui/"


def test_each_worker_shows_its_service_and_no_button_that_kills(page: Page, own: str, stack: Stack) -> None:
    url = stack.urls(SERVICE)[0]
    opened(page, own)
    eventually(lambda: (owners_seen(page), owners_told(url)), lambda both: both[0] == both[1])
    assert page.texts("section.service h3, section.service h2")[0].startswith(SERVICE)
    assert page.run("document.querySelectorAll('td.act, .doctor').length") == 0
    eventually(lambda: page.text("[data-figure=handled]"), lambda text: text not in (None, "–"))
    assert page.complaints == []


def test_its_search_is_the_requests_that_it_makes(page: Page, own: str, stack: Stack) -> None:
    url = stack.urls(SERVICE)[0]
    assert httpx.post(f"{url}/accounts/own-page", json={}, trust_env=False).status_code in (200, 201)
    opened(page, own)
    told = page.run("import('./static/ask.js').then(({get}) => get('accounts', '/accounts/own-page'))")
    assert told["status"] == 200
    assert told["body"] == httpx.get(f"{url}/accounts/own-page", trust_env=False).json()


def test_a_dead_letter_is_discarded_in_its_name(page: Page, own: str, stack: Stack) -> None:
    opened(page, own)
    _, letter = park(page, stack)
    open_letter(page, letter)
    page.fill("dialog input[name=why]", "it can't be read")
    press(page, "discard")
    gone(page, letter)


@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS)
def test_axe_finds_nothing_there(page: Page, own: str, screen: Screen) -> None:
    opened(page, own, screen)
    check_everybody_can_use(page)
