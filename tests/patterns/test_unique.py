"""Of many who claim the same, one has it, whatever is killed and whatever expires in between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Event
from uuid import uuid4

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import app_command
from shared.http.client import Client, Refused, path_of
from shared.http.history import PastEvent
from tests.conftest import WORKER_SETTINGS
from tests.patterns.nicknames.api import NicknameView
from tests.patterns.nicknames.domain.commands import ClaimNickname, ReleaseNickname, UseNickname
from tests.patterns.nicknames.topology import TOPOLOGY
from tests.waiting import PATIENCE_S, eventually

NICKNAMES = [f"nick-{number}" for number in range(4)]
CLAIMANTS = ["s-1", "s-2", "s-3"]
LOST = "lost"  # a claimant that claims first and is never seen again


def command(_: str) -> list[str]:
    return app_command("tests.patterns.hasty_nicknames")


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Stack]:
    """Claims expire at once."""
    services = {TOPOLOGY.service: 2}
    with Stack(tmp_path, services, settings=WORKER_SETTINGS, topologies=[TOPOLOGY], command=command) as stack:
        yield stack


@pytest.fixture
def client(hasty: Stack) -> Iterator[Client]:
    with Client(hasty.urls(TOPOLOGY.service)) as client:
        yield client


def sign_up(client: Client, path: str, claimant: str, claimed: Event, killed: Event) -> bool | None:
    """Whether the claimant has it in the end; None if that is open. It crashes once it has claimed, and begins again
    when the worker is killed.
    """
    key = str(uuid4())
    try:
        first = client.send(path, ClaimNickname(claimant=claimant), key=key)
        claimed.set()
        assert killed.wait(PATIENCE_S)
        assert client.send(path, ClaimNickname(claimant=claimant), key=key) == first
        client.send(f"{path}/use", UseNickname(claimant=claimant))
        return True
    except Refused as refusal:
        if refusal.code == "nickname.taken":
            view = shown(client, path, until="phase:used")
            return False if view is not None and view.phase == "used" else None
        if refusal.code != "nickname.not_claimed":
            raise
        return None


def shown(client: Client, path: str, until: str | None = None) -> NicknameView | None:
    try:
        return client.read(path, NicknameView, until=until).body
    except Refused as refusal:
        if refusal.status != httpx.codes.NOT_FOUND:
            raise
        return None


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_of_many_claimants_one_has_it_though_a_worker_is_killed_between_claim_and_use(
    hasty: Stack, client: Client
) -> None:
    urls, (victim, _) = hasty.urls(TOPOLOGY.service), hasty.workers
    paths = {nickname: path_of("/nicknames", nickname) for nickname in NICKNAMES}
    claimed, killed = Event(), Event()
    for path in paths.values():
        client.send(path, ClaimNickname(claimant=LOST))

    def signed_up(nickname: str, claimant: str) -> bool | None:
        with Client(urls, deadline_s=PATIENCE_S) as own:
            return eventually(
                lambda: sign_up(own, paths[nickname], claimant, claimed, killed), lambda has: has is not None
            )

    pairs = [*product(NICKNAMES, CLAIMANTS)]
    with ThreadPoolExecutor(len(pairs)) as pool:
        answers = [pool.submit(signed_up, *pair) for pair in pairs]
        assert claimed.wait(PATIENCE_S)
        victim.spawn()  # kills it first
        killed.set()
        has = [pair for pair, answer in zip(pairs, answers, strict=True) if answer.result()]
    assert [nickname for nickname, _ in has] == NICKNAMES
    for nickname, holder in has:
        view = shown(client, paths[nickname])
        assert (view and (view.phase, view.claimant)) == ("used", holder)
        events = [event for page in client.pages(f"{paths[nickname]}/events", PastEvent) for event in page.items]
        told = [(event.type.removeprefix("nickname."), event.data["claimant"]) for event in events]
        late = [claimant for kind, claimant in told if kind == "expired"]
        assert late[0] == LOST
        tries = [(kind, claimant) for claimant in late for kind in ("claimed", "expired")]
        assert told == [*tries, ("claimed", holder), ("used", holder)]

    nickname, holder = has[0]
    client.send(f"{paths[nickname]}/release", ReleaseNickname(claimant=holder))
    assert shown(client, paths[nickname]) is None
    client.send(paths[nickname], ClaimNickname(claimant="s-5"))
