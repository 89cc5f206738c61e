"""Effects to receivers that fail, hang and die, by runners and workers that die: none is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shared.dev.stack import Stack
from shared.dev.worker import app_command
from shared.http.client import AsyncClient, Client, path_of
from shared.http.effects import EffectView
from shared.runtime.checkout import CHECKOUT
from shared.runtime.child import Child
from shared.runtime.settings import PREFIX
from shared.topology.effect import RequestEffect
from tests.conftest import WORKER_SETTINGS
from tests.effects.mailbox import NO_SUCH, Mailbox
from tests.patterns.errands.service import SERVICE
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

TOPOLOGY = SERVICE.topology
AT_ONCE = 32  # requests
PLAIN, ONCE = "plain", "once"


def command(_: str) -> list[str]:
    return app_command("tests.effects.hasty_errands")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root, services = tmp_path_factory.mktemp("stack"), {TOPOLOGY.service: 2}
    with Stack(root, services, settings=WORKER_SETTINGS, topologies=[TOPOLOGY], command=command) as stack:
        yield stack


class Process:
    """One of this folder's modules, that can be killed and started again."""

    def __init__(self, module: str, log: Path, arguments: Sequence[str]) -> None:
        self._command = (sys.executable, "-P", "-m", f"tests.effects.{module}", *arguments)
        self._log = log
        self._child: Child | None = None

    def start(self) -> None:
        """Again, if it runs."""
        self.kill()
        own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self._child = Child(self._command, self._log, CHECKOUT, {**own, "PYTHONPATH": str(CHECKOUT)})

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def receiver(tmp_path: Path, journal: Path) -> Iterator[tuple[Process, str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = Process("receiver", tmp_path / "receiver.log", [str(port), str(journal)])
    process.start()
    yield process, f"http://127.0.0.1:{port}"
    process.kill()


@pytest.fixture
def runner(hasty: Stack, receiver: tuple[Process, str], mailbox: Mailbox, tmp_path: Path) -> Iterator[Process]:
    arguments = [receiver[1], str(mailbox.port), *hasty.urls(TOPOLOGY.service)]
    process = Process("running", tmp_path / "runner.log", arguments)
    process.start()
    yield process
    process.kill()


def request(urls: Sequence[str], targets: Sequence[str], prefix: str) -> None:
    """One errand for each, numbered."""

    async def requested() -> None:
        room = asyncio.Semaphore(AT_ONCE)
        async with AsyncClient(urls, deadline_s=120.0) as client, asyncio.TaskGroup() as requests:
            for number, target in enumerate(targets):
                await room.acquire()
                errand = RequestEffect(target=target, body=f'{{"number": {number}}}')
                sending = requests.create_task(client.send(path_of("/errands", f"{prefix}-{number}"), errand))
                sending.add_done_callback(lambda _: room.release())

    asyncio.run(requested())


def errands(client: Client, **by: str) -> list[EffectView]:
    return [errand for page in client.pages("/errands", EffectView, **by) for errand in page.items]


@pytest.mark.parametrize("count", [120, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_none_is_lost_and_none_repeated_where_keys_are_honoured(
    count: int, hasty: Stack, receiver: tuple[Process, str], runner: Process, journal: Path
) -> None:
    urls, few, prefix = hasty.urls(TOPOLOGY.service), min(count // 6, 300), f"of-{count}"
    targets = [*[PLAIN] * few, *[ONCE] * few, *["keyed"] * (count - 2 * few)]

    def effects() -> list[list[str]]:
        return [line.split() for line in journal.read_text().splitlines()]

    request(urls, targets, prefix)
    kills = 0
    victim, *_ = hasty.workers
    for part, kill in enumerate((runner.start, receiver[0].start, victim.spawn, runner.start, receiver[0].start), 1):
        enough = part * count // 7
        eventually(lambda: len(effects()), enough.__lt__, 600)
        kill()
        kills += kill != victim.spawn

    with Client(urls, deadline_s=60.0) as client:
        ended = eventually(
            lambda: Counter(each.phase for each in errands(client) if each.effect_id.startswith(prefix)),
            lambda found: found["done"] + found["lost"] == count,
            600,
        )
        lost = {each.effect_id for each in errands(client, phase="lost")}
    calls = {target: Counter(int(number) for name, _, number in effects() if name == target) for target in {*targets}}
    wanted = {target: {number for number, each in enumerate(targets) if each == target} for target in {*targets}}
    assert calls["keyed"] == Counter(wanted["keyed"])
    assert calls[PLAIN].keys() == wanted[PLAIN]
    assert calls[PLAIN].total() - few <= kills
    assert max(calls[ONCE].values()) == 1
    assert wanted[ONCE] - calls[ONCE].keys() <= {int(each.rpartition("-")[2]) for each in lost}
    assert ended["lost"] <= kills


def test_a_mail_is_sent_and_one_that_is_given_up_waits_for_a_person(
    hasty: Stack, runner: Process, mailbox: Mailbox
) -> None:
    with Client(hasty.urls(TOPOLOGY.service), deadline_s=60.0) as client:
        mail = RequestEffect(target="mail", to="ann@example.org", subject="Your order", body="It is on its way.")
        client.send("/errands/m-1", mail)
        assert client.read("/errands/m-1", EffectView, until="phase:done", wait_s=30.0).met
        [sent] = mailbox.mails
        assert (sent["To"], sent["Subject"], sent["Message-ID"]) == (mail.to, mail.subject, "<m-1@example.org>")

        client.send("/errands/m-2", mail.model_copy(update={"to": NO_SUCH}))
        assert client.read("/errands/m-2", EffectView, until="phase:given_up", wait_s=30.0).met
        [stuck] = errands(client, phase="given_up")
        assert (stuck.effect_id, stuck.attempt, stuck.reason) == ("m-2", 1, "SMTP 550")
        client.send("/errands/m-2/repeat")
        assert client.read("/errands/m-2", EffectView, until="attempt:2", wait_s=30.0).met
        assert client.read("/errands/m-2", EffectView, until="phase:given_up", wait_s=30.0).met
        client.send("/errands/m-2/settle")
        assert client.read("/errands/m-2", EffectView).body.phase == "done"
