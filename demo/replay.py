"""Purchases as commands, the commands topic they go to, and how many of them the workers have decided."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus

from demo.cdnow import Purchase
from demo.client import Client
from demo.progress import show
from services.accounts.domain.commands import AccountCommand, Charge, OpenAccount
from services.accounts.domain.decide import DECIDER
from services.accounts.topology import COMMANDS
from shared.dev.stack import Stack
from shared.dev.stages import Stage, StageFailed
from shared.es.envelope import CommandEnvelope
from shared.kafka.producer import CommandProducer

STALLED_S = 60.0
_TICK_S = 0.2
_APPENDED_AT_ONCE = 2_000

Envelope = CommandEnvelope[AccountCommand]


def command_id(purchase: Purchase) -> str:
    """Named after the line, not its content: 215 lines of the file repeat another."""
    return f"cdnow-{purchase.line}"


def openings(purchases: Iterable[Purchase]) -> list[Envelope]:
    """A command for each customer, issued at the first of these purchases, which are in time order."""
    firsts: dict[str, Purchase] = {}
    for purchase in purchases:
        firsts.setdefault(purchase.customer, purchase)
    wrap = DECIDER.command_codec.wrap
    return [
        wrap(OpenAccount(), command_id=f"cdnow-open-{customer}", aggregate_id=customer, issued_at=first.date)
        for customer, first in firsts.items()
    ]


def charges(purchases: Iterable[Purchase]) -> list[Envelope]:
    """A command for each purchase, issued when it happened."""
    wrap = DECIDER.command_codec.wrap
    return [
        wrap(
            Charge(amount_cents=purchase.amount_cents),
            command_id=command_id(purchase),
            aggregate_id=purchase.customer,
            issued_at=purchase.date,
        )
        for purchase in purchases
    ]


class Log:
    """The commands topic as the demo fills it and the workers decide it."""

    def __init__(self, stack: Stack, client: Client, producer: CommandProducer) -> None:
        self._stack = stack
        self._client = client
        self._producer = producer
        self._latest: dict[int, tuple[int, Envelope]] = {}
        self._positions: dict[int, int] = {}

    async def append(self, commands: Sequence[Envelope], now: Stage | None = None) -> None:
        """Returns when the broker has acknowledged all of them."""
        for start in range(0, len(commands), _APPENDED_AT_ONCE):
            part = commands[start : start + _APPENDED_AT_ONCE]
            await asyncio.gather(*map(self._append, part))
            if now:
                show(now, start + len(part), len(commands), "appended")

    async def _append(self, command: Envelope) -> None:
        value = DECIDER.command_codec.encode(command)
        partition, offset = await self._producer.send(COMMANDS.name, command.aggregate_id.encode(), value)
        if offset >= self._latest.get(partition, (0, command))[0]:
            self._latest[partition] = offset, command

    async def decided(self) -> int:
        """How many commands the workers have come past, by their own account."""
        for worker in await self._client.from_all("/cluster"):
            for source in worker["sources"]:
                if source["topic"] == COMMANDS.name:
                    partition, position = source["partition"], source["position"]
                    self._positions[partition] = max(position, self._positions.get(partition, 0))
        return sum(self._positions.values())

    async def await_decided(self, sent: int, now: Stage) -> None:
        """Returns when `sent` commands, those over HTTP included, are appended and each has an outcome.

        Raises StageFailed when a process ended by itself, or when nothing was decided for a minute.
        """
        start = seen = await self.decided()
        changed = time.monotonic()
        while seen < sent or not await self._all_answered():
            await asyncio.sleep(_TICK_S)
            check(self._stack)
            count = await self.decided()
            if count > seen:
                seen, changed = count, time.monotonic()
            elif time.monotonic() - changed > STALLED_S:
                problem = f"nothing was decided for {STALLED_S:.0f} s; {seen:,} of {sent:,} commands are"
                raise StageFailed(problem, "read the workers' logs", self._stack.logs)
            show(now, seen, sent, "decided", start)

    async def _all_answered(self) -> bool:
        """A partition is decided in order, so the outcome of its last command stands for all of them."""
        for _, last in self._latest.values():
            answer = await self._client.get(f"/accounts/{last.aggregate_id}/commands/{last.command_id}")
            if answer.status == HTTPStatus.NOT_FOUND:
                return False
        return True


def check(stack: Stack) -> None:
    """Raises when a broker or a worker ended by itself."""
    stack.kafka.check()
    for worker in stack.workers:
        if worker.exit_code is not None:
            raise StageFailed(f"{worker.name} ended with {worker.exit_code}", "mend what its log says", worker.log)
