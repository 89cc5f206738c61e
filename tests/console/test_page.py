"""What a person sees: the API's figures, who takes over, what is wrong; in light and dark, on a phone, by keyboard."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from shared.console import watch
from shared.console.app import Order, create_console
from shared.console.feed import Feed
from shared.console.picture import Declared, Picture, ServicePartition, Shown
from shared.console.watch import Watcher
from shared.dev.doctor import diagnose
from shared.dev.stack import Stack
from shared.http.cluster import Member, Standby
from shared.kafka.access import client_config
from shared.operations.provision import set_config
from shared.stories.tail import Newest
from tests.accounts.topology import EVENTS, TOPOLOGY
from tests.console.browser import Page, Screen
from tests.console.conftest import Controls, Runs, check_everybody_can_use, opened, serving
from tests.console.pictures import SCREENS, take
from tests.waiting import eventually

SERVICE = TOPOLOGY.service
SETTING = "unclean.leader.election.enable"

OWNERS = """[...document.querySelectorAll("tr[data-worker]")].flatMap(row =>
  [...row.querySelectorAll("td")].map((cell, partition) => [partition, row.dataset.worker, cell.className])
).filter(([,, kind]) => kind.startsWith("owner"))"""

VERBS = "[...document.querySelectorAll('.versions button')].map(each => each.dataset.verb)"

TWO_VERSIONS = """
const real = fetch;
window.fetch = async (url, options) => {
  const answer = await real(url, options);
  if (url !== "stream") return answer;
  const frames = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(new TransformStream({
    transform(text, to) {
      to.enqueue(text.replace(/^data: (.*)$/m, (_, json) => {
        const picture = JSON.parse(json), [{declared, standing, members}] = picture.services, [{url}] = members;
        declared.beside = true;
        declared.version = 2;
        Object.assign(standing, {active: 1, former: 3, by: "olga", reason: "it was wrong"});
        standing.owners = {1: {0: url}, 2: {0: url, 1: url, 3: url}};
        const version = (version, workers) => ({version, group: "g", workers, begun: true, declared: version === 2});
        picture.versions = {[declared.name]: [version(1, 1), version(2, 1), version(3, 0)]};
        return `data: ${JSON.stringify(picture)}`;
      }));
    }})).pipeThrough(new TextEncoderStream());
  return new Response(frames);
};
document.dispatchEvent(new Event("visibilitychange"))"""

FINDINGS = """[...document.querySelectorAll(".finding")].map(finding =>
  ["h3", "p", ".why", "code"].map(part => finding.querySelector(part).textContent))"""


def owners_seen(page: Page) -> dict[int, str]:
    """The owner's URL of each partition."""
    return {int(partition): str(worker) for partition, worker, _ in page.run(OWNERS)}


def owners_told(url: str) -> dict[int, str | None]:
    partitions = httpx.get(f"{url}/cluster", trust_env=False).json()["tables"]["accounts"]
    return {each["partition"]: each["active"] for each in partitions}


def test_figures_are_those_of_the_api(page: Page, console: str, stack: Stack) -> None:
    url = stack.urls(SERVICE)[0]
    opened(page, console)
    eventually(lambda: (owners_seen(page), owners_told(url)), lambda both: both[0] == both[1])
    for id_ in ("ann", "ben", "cat"):
        httpx.post(f"{url}/accounts/{id_}", headers={"Idempotency-Key": f"page-{id_}"}, trust_env=False)

    def figures() -> tuple[str | None, str]:
        topics = httpx.get(f"{url}/cluster", trust_env=False).json()["topics"]
        waiting = sum(each["lag_records"] for some in topics.values() for each in some)
        return page.text("[data-figure=waiting]"), f"{waiting:,}"

    eventually(figures, lambda both: both[0] == both[1])
    eventually(lambda: page.text("[data-figure=handled]"), lambda text: text not in (None, "–"))
    assert page.complaints == []


def test_a_take_over_is_seen_and_told(page: Page, console: str, stack: Stack) -> None:
    opened(page, console)
    victim, survivor = stack.workers_of(SERVICE)
    eventually(lambda: set(owners_seen(page).values()), lambda owners: owners == {victim.url, survivor.url})
    try:
        page.run(f"document.querySelector('tr[data-worker=\"{victim.url}\"] button').click()")
        told = "went from worker 1 to worker 2"
        eventually(lambda: page.text(".news [role=log]"), lambda text: text is not None and told in text)
        assert set(owners_seen(page).values()) == {survivor.url}
    finally:
        victim.start()
    eventually(lambda: set(owners_seen(page).values()), lambda owners: owners == {victim.url, survivor.url})


def test_a_worker_is_added_once_and_a_refusal_is_told(page: Page, console: str, controls: Controls) -> None:
    opened(page, console)
    for told in ("one more worker starts", f"{SERVICE} has enough"):
        page.run("document.querySelector('section.service header button').click()")
        eventually(lambda: page.text(".news [role=log]"), lambda text, told=told: text and told in text)  # type: ignore[misc]
    assert controls.added == [SERVICE]


def test_another_origins_page_can_not_act(console: str) -> None:
    """A browser asks before it sends that header to another origin, and gets no leave."""
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(f"{console}/workers", headers=asked).headers
    assert httpx.post(f"{console}/workers", json={"service": SERVICE}, trust_env=False).status_code == 422


def test_findings_are_those_of_the_doctor(
    page: Page, console: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_EXAMINED_EVERY_S", 1.0)
    workers = {SERVICE: stack.urls(SERVICE)}

    def both() -> tuple[str, str]:
        """What the page shows, and what the doctor finds, but for times that go on."""
        found = diagnose([TOPOLOGY], workers, stack.settings).findings
        told = [[f"{each.severity.name.lower()} {each.what}", each.evidence, each.why, each.cure] for each in found]
        shown, expected = (re.sub(r"[0-9,]+ s\b", "… s", json.dumps(each)) for each in (page.run(FINDINGS), told))
        return shown, expected

    opened(page, console)
    eventually(both, lambda pair: pair[0] == pair[1] and SETTING not in pair[1])  # maybe of what other tests have left
    admin = AdminClient(client_config(stack.bootstrap))
    set_config(admin, EVENTS.name, SETTING, "true")
    try:
        eventually(both, lambda pair: pair[0] == pair[1] and SETTING in pair[1])
    finally:
        set_config(admin, EVENTS.name, SETTING, "false")
    eventually(both, lambda pair: pair[0] == pair[1] and SETTING not in pair[1])


def test_versions_are_those_of_the_brokers_and_a_check_says_how_it_ended(page: Page, console: str, runs: Runs) -> None:
    opened(page, console)
    eventually(lambda: page.text(".versions li"), lambda text: text == "version 1 2 workers")
    assert page.run(VERBS) == ["parity"]
    page.click(".versions [data-verb=parity]")
    eventually(lambda: page.text(".versions [role=status]"), lambda text: text == "runs")
    assert page.text(".versions pre") == "comparing\n3 of 3 agree"
    assert page.run("document.querySelector('.versions button').disabled")
    runs.end(0)
    eventually(lambda: page.text(".versions [role=status]"), lambda text: text == "they agree")


def test_a_version_is_switched_to_with_who_and_why_and_a_refusal_is_told(page: Page, console: str, runs: Runs) -> None:
    """What two versions of a view look like; tests/versions has real ones."""
    opened(page, console)
    runs.seen = []
    page.run(TWO_VERSIONS)
    eventually(lambda: page.text(".versions [data-version='2']"), lambda text: text and "owns 0–1, 3" in text)
    assert "answers" in (page.text(".versions [data-version='1']") or "")
    assert "version 1 answers since olga decided so: it was wrong" in (page.text(".versions article") or "")
    assert page.run(VERBS) == ["parity", "compare", "switch", "rollback", "retire"]
    page.click(".versions [data-verb=switch]")
    page.click("dialog .mend button")
    eventually(lambda: page.text("dialog [role=status]"), lambda text: text and text.startswith("Say why first"))
    page.fill("dialog [name=why]", "counts returns")
    page.click("dialog .mend button")
    eventually(lambda: page.text("dialog"), lambda text: text is None)
    page.click(".versions [data-verb=retire]")
    eventually(lambda: page.text("dialog"), lambda text: text and "no way back" in text)
    check_everybody_can_use(page)
    page.fill("dialog [name=why]", "nobody goes back")
    page.click("dialog .mend button")
    eventually(lambda: page.text("dialog"), lambda text: text is None)
    assert runs.orders[-2:] == [
        Order(service=SERVICE, verb="switch", reason="counts returns"),
        Order(service=SERVICE, verb="retire", version=3, reason="nobody goes back"),
    ]
    runs.end(2)
    refused = page.run("""fetch("runs", {method: "POST", body: JSON.stringify({service: "accounts", verb: "deploy"}),
        headers: {"Content-Type": "application/json", "Onefold-Console": "1"}}).then(answer => answer.text())""")
    assert refused == "only version 1 is declared"


def test_nothing_is_asked_while_nobody_looks(page: Page, console: str, feed: Feed) -> None:
    opened(page, console)
    assert feed.viewers == 1
    page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    assert page.text(".live") == "paused"
    eventually(lambda: feed.viewers == 0)
    page.run("delete document.hidden")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    eventually(lambda: page.text(".live"), lambda text: text == "live")
    assert feed.viewers == 1


@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS)
def test_axe_finds_nothing_and_nothing_sticks_out(page: Page, console: str, screen: Screen) -> None:
    opened(page, console, screen)
    eventually(lambda: page.text(".doctor small"))
    check_everybody_can_use(page)


class _Large(Watcher):
    """What a hundred partitions of twenty workers look like."""

    def __init__(self) -> None:
        super().__init__([], dict, dict, Newest)

    async def look(self) -> bytes:
        urls = [f"http://worker-{number}:80" for number in range(20)]
        places = [
            ServicePartition(
                partition=partition,
                owner=urls[partition % 20],
                restored=True,
                to_restore=0,
                left_s=None,
                lag_records=partition * 10_000,
                lag_seconds=float(partition),
                standbys=[Standby(url=urls[(partition + 1) % 20], lag_records=0, lag_seconds=None)],
            )
            for partition in range(100)
        ]
        large = Declared(name="large", group="large", version=1, partitions=100, reads=("t",), sends=())
        members = [Member(url=url, reachable=True, handled=1, parked=0) for url in urls]
        shown = Shown(declared=large, url=urls[0], members=members, places=places)
        return Picture(at=time.time(), services=[shown], newest=Newest()).model_dump_json().encode()


def test_a_hundred_partitions_of_twenty_workers_have_room(page: Page) -> None:
    with serving(create_console(_Large())) as url:
        opened(page, url)
        expected = {partition: f"http://worker-{partition % 20}:80" for partition in range(100)}
        eventually(lambda: owners_seen(page), lambda owners: owners == expected)
        assert page.run("document.querySelectorAll('tr[data-worker] td.standby').length") == 100
        check_everybody_can_use(page)
        page.open("about:blank")  # so that the server can end


def test_everything_can_be_reached_by_keyboard(page: Page, console: str) -> None:
    opened(page, console)
    seen = []
    for _ in range(24):
        page.press("Tab")
        seen.append(page.run("document.activeElement.closest('section, header')?.className ?? ''"))
    assert {"top", "card flow", "card service", "card tables", "card tail"} <= set(seen)


def test_its_pictures(page: Page, console: str, tmp_path: Path) -> None:
    take(page, console, tmp_path)
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in SCREENS)
