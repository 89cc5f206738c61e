"""Workers of the tests' own accounts on the lab's broker, asked over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import httpx

from bench.lab import Lab
from shared.dev.stages import StageFailed
from shared.dev.worker import Command, Worker, faust_command
from shared.http.client import Client, Refused, path_of
from shared.kafka.murmur2 import partition_of
from tests.accounts.service import SERVICE
from tests.accounts.topology import TOPOLOGY

PARTITIONS = TOPOLOGY.partitions
NEXT = replace(SERVICE, topology=TOPOLOGY.next_version)
_SETTLE_S = 60.0
_COMMAND = partial(faust_command, package="tests")


@contextmanager
def accounts(lab: Lab, count: int, command: Command = _COMMAND, **settings: object) -> Iterator[list[Worker]]:
    """`count` workers, ready, each owning its share."""
    lab.provision([TOPOLOGY])
    log = lab.root / "logs" / "accounts.log"
    workers = [Worker(TOPOLOGY.service, str(number), lab.settings, log, command) for number in range(1, count + 1)]
    try:
        for worker in workers:
            worker.change(**settings)
            worker.spawn()
        for worker in workers:
            worker.await_ready()
        owners(workers)
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.await_end(_SETTLE_S)


def owners(workers: list[Worker]) -> dict[int, Worker]:
    """Who owns each partition, once all workers agree and each owns some. Raises StageFailed."""
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        views = [httpx.get(f"{worker.url}/cluster", trust_env=False).json()["owners"]["accounts"] for worker in workers]
        if all(view == views[0] for view in views) and set(views[0].values()) == {worker.url for worker in workers}:
            by_url = {worker.url: worker for worker in workers}
            return {int(partition): by_url[url] for partition, url in views[0].items()}
        time.sleep(0.2)
    raise StageFailed("the workers do not agree on who owns what", "see the log", workers[0].log)


def ids(partitions: set[int], count: int) -> list[str]:
    """`count` account ids that belong to these partitions."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if partition_of(f"customer-{number}".encode(), PARTITIONS) in partitions:
            found.append(f"customer-{number}")
        number += 1
    return found


def fill(worker: Worker, accounts: list[str]) -> None:
    """Opens these accounts; those already open stay as they are."""
    with Client(worker.url) as ours:
        for account_id in accounts:
            with suppress(Refused):
                ours.send(path_of("/accounts", account_id))
