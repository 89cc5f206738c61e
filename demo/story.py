"""What the demo does to running workers, one method a stage, and what it learns from them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from demo.cdnow import Purchase
from demo.client import Answer, Client
from demo.progress import for_each, rate
from demo.replay import Log, charges, check, command_id, openings
from services.accounts.topology import COMMANDS, TOPOLOGY
from shared.dev.stack import Stack
from shared.dev.stages import Stage
from shared.dev.worker import Worker
from shared.kafka.producer import CommandProducer

OVER_HTTP = 1_000
_INTO_THE_LOAD_S = 0.5
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Account:
    """An account as HTTP shows it."""

    balance_cents: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What the workers said. seconds: from the first command to the last outcome; refused: commands by code."""

    commands: int
    seconds: float
    accounts: Mapping[str, Account]
    refused: Mapping[str, int]

    @property
    def events(self) -> int:
        """An account's sequence counts its events."""
        return sum(account.sequence for account in self.accounts.values())


class Story:
    """The purchases, in time order: some over HTTP, half of the others before a crash, half after it."""

    def __init__(self, purchases: Sequence[Purchase], stack: Stack, client: Client, producer: CommandProducer) -> None:
        posted = min(OVER_HTTP, len(purchases) // 2)
        middle = posted + (len(purchases) - posted) // 2
        self._purchases = purchases
        self._posted, self._before, self._after = purchases[:posted], purchases[posted:middle], purchases[middle:]
        self._openings = openings(purchases)
        self._commands = len(self._openings) + len(purchases)
        self._stack = stack
        self._victim = stack.workers_of(TOPOLOGY.service)[0]
        self._client = client
        self._log = Log(stack, client, producer)
        self._rest: asyncio.Task[None] | None = None
        self._began = time.monotonic()
        self._seconds = 0.0
        self._found: dict[str, Account] = {}

    async def open_accounts(self, now: Stage) -> str:
        opened = len(self._openings)
        await self._log.append(self._openings, now)
        await self._log.await_decided(opened, now)
        return f"{opened:,} opened through {COMMANDS.name}, {rate(opened, now)}"

    async def post_first(self, now: Stage) -> str:
        answers = await for_each(self._post, self._posted, now, "answered")
        seconds = sorted(answer.seconds for answer in answers) or [0.0]
        half, most = (seconds[int(share * (len(seconds) - 1))] * 1000 for share in (0.5, 0.99))
        return (
            f"{len(answers):,} purchases posted, {rate(len(answers), now)}, 50% in {half:.0f} ms, 99% in {most:.0f} ms"
        )

    async def append_half(self, now: Stage) -> str:
        await self._log.append(charges(self._before), now)
        return f"{len(self._before):,} purchases appended to {COMMANDS.name}, {rate(len(self._before), now)}"

    async def crash(self, now: Stage) -> str:
        """In the middle of the load: the other half is being appended, and that goes on."""
        self._rest = asyncio.create_task(self._log.append(charges(self._after)))
        await asyncio.wait([self._rest], timeout=_INTO_THE_LOAD_S)
        decided, pid = await self._log.decided(), self._victim.pid
        self._victim.kill()
        return f"SIGKILL to {self._victim.name} (process {pid}) when {decided:,} of {self._commands:,} are decided"

    async def recover(self, now: Stage) -> str:
        self._victim.spawn()
        ready_s, _ = await asyncio.gather(_ready(self._victim, self._stack, now), self._finish(now))
        return f"{len(self._after):,} more appended, {self._victim.name} ready after {ready_s:.1f} s, all decided"

    async def compare(self, now: Stage) -> str:
        customers = [command.aggregate_id for command in self._openings]
        answers = await for_each(self._account, customers, now, "asked")
        self._found = {customer: account for customer, account in zip(customers, answers, strict=True) if account}
        return f"{len(customers):,} accounts asked over HTTP, {rate(len(customers), now)}"

    async def findings(self) -> Findings:
        return Findings(self._commands, self._seconds, self._found, await self._refused())

    async def _post(self, purchase: Purchase) -> Answer:
        headers = {"Idempotency-Key": command_id(purchase), "Occurred-At": purchase.date.isoformat()}
        body = {"amount_cents": purchase.amount_cents}
        return await self._client.post(f"/accounts/{purchase.customer}/charges", body, headers)

    async def _finish(self, now: Stage) -> None:
        assert self._rest
        await asyncio.gather(self._rest, self._log.await_decided(self._commands, now))
        self._seconds = time.monotonic() - self._began

    async def _account(self, customer: str) -> Account | None:
        answer = await self._client.get(f"/accounts/{customer}")
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        return Account(answer.body["balance_cents"], answer.body["sequence"])

    async def _refused(self) -> Mapping[str, int]:
        """Commands by code: asked of the accounts that have fewer events than the file has purchases."""
        purchases = Counter(purchase.customer for purchase in self._purchases)
        short = {name for name, account in self._found.items() if account.sequence < 1 + purchases[name]}
        suspects = [purchase for purchase in self._purchases if purchase.customer in short]
        answers = await asyncio.gather(*map(self._outcome, suspects))
        return Counter(answer.body["code"] for answer in answers if answer.status == HTTPStatus.CONFLICT)

    async def _outcome(self, purchase: Purchase) -> Answer:
        return await self._client.get(f"/accounts/{purchase.customer}/commands/{command_id(purchase)}")


async def _ready(worker: Worker, stack: Stack, now: Stage) -> float:
    """Seconds into the stage when the worker was ready. Raises StageFailed when it ended before."""
    while not await asyncio.to_thread(worker.is_ready):
        check(stack)
        await asyncio.sleep(_TICK_S)
    return now.seconds
