"""The runner: finds the effects that are pending, calls, and says what came of it.

It keeps nothing. What there is to do is what the service's rows say, and each attempt is asked for before its call, so
any number of runners may run, and be killed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog
from pydantic import BaseModel

from shared.domain.message import Command
from shared.effects.target import CallFailed, Effects, Target
from shared.http.client import AsyncClient, ClientError, Refused, Unavailable, path_of
from shared.runtime.clock import elapsed_s
from shared.runtime.logs import configure_logging
from shared.runtime.settings import Settings
from shared.topology.effect import AttemptEffect, Content, ExpireEffect, FailEffect, SucceedEffect

log = structlog.get_logger(__name__)

PAUSE_S = 0.5  # between looks at what is pending
LONGEST_REST_S = 3_600.0  # that a target may ask for
KEPT_OUT = (401, 403)  # the service does not take the runner's token: it may take the next
FIX = "write a token with the service's scopes to --token-file; without one, set ONEFOLD_TOKEN and start again"


class Pending(BaseModel):
    effect_id: str
    attempt: int
    content: Content


def run(effects: Effects, urls: Sequence[str], token: str | Callable[[], str] | None, settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises ValueError for two targets of one name."""
    configure_logging(settings)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
    targets = effects.targets()
    names = [target.name for target in targets]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"more than one target is called {sorted(repeated)}; fix: give one another name")
    asyncio.run(_run(effects.path, targets, urls, token))


async def _run(
    path: str, targets: Sequence[Target], urls: Sequence[str], token: str | Callable[[], str] | None
) -> None:
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    if targets:
        log.info("effects are run", path=path, targets=[target.name for target in targets])
    else:
        log.warning("no target is set, so effects wait; fix: set what `targets` reads, and start again", path=path)
    try:
        async with AsyncClient(urls, token=token) as service, asyncio.TaskGroup() as everything:
            for target in targets:
                everything.create_task(Calls(service, path, target).run())
            await asyncio.Event().wait()  # also without a target: what keeps runners running would start it for ever
    except asyncio.CancelledError:
        log.info("the runner stops; attempts without an outcome expire")


class Calls:
    """Those to one target."""

    def __init__(self, service: AsyncClient, path: str, target: Target) -> None:
        self._service, self._path, self._target = service, path, target
        self._room = asyncio.Semaphore(target.at_once)
        self._running = set[str]()
        self._failures = 0  # in a row
        self._rests_until_s = 0.0  # as it has asked for
        self._told = ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as calls:
            while True:
                try:
                    await self._begin(calls)
                    if not self._running:  # else it says only that rows can be read
                        self._told = ""
                except ClientError as error:  # the service is away: the next look may find it again
                    self._tell(error)
                await asyncio.sleep(PAUSE_S)

    async def _begin(self, calls: asyncio.TaskGroup) -> None:
        """Begins a call for each that is pending, as soon as there is room."""
        async for page in self._service.pages(self._path, Pending, pending_for=self._target.name):
            for effect in page.items:
                if effect.effect_id in self._running:
                    continue
                await self._room.acquire()
                resting = self._failures >= self._target.breaks_after
                if (rest_s := max(self._target.rests_s * resting, self._rests_until_s - elapsed_s())) > 0:
                    await asyncio.sleep(rest_s)
                self._running.add(effect.effect_id)
                call = calls.create_task(self._call(effect))
                if resting:
                    await asyncio.wait([call])

    async def _call(self, effect: Pending) -> None:
        try:
            if await self._asked(effect):
                await self._report(effect, *await self._made(effect))
        finally:
            self._running.discard(effect.effect_id)
            self._room.release()

    async def _asked(self, effect: Pending) -> bool:
        """Whether this runner may make this attempt. If that can't be found out, it is not made, and expires."""
        try:
            asked = AttemptEffect(attempt=effect.attempt, repeats=self._target.repeats)
            await self._send(effect, "attempt", asked)
        except ClientError as error:
            if not (isinstance(error, Refused) and error.code.endswith(".not_pending")):
                self._tell(error)
            return False
        return True

    async def _made(self, effect: Pending) -> tuple[str, Command]:
        """The command that says what came of the call."""
        try:
            async with asyncio.timeout(self._target.timeout_s):
                await self._target.send(effect.effect_id, effect.content)
        except Exception as error:  # whatever a target's own code raises says nothing of the effect
            failed = error if isinstance(error, CallFailed) else None
            reason = str(error) if failed else f"unclear: {type(error).__name__}"
            log.warning("a call failed", target=self._target.name, effect=effect.effect_id, reason=reason)
            if failed is None or not failed.final:
                self._failures += 1
            if failed is not None:
                self._rests_until_s = max(self._rests_until_s, elapsed_s() + min(failed.rest_s, LONGEST_REST_S))
            if failed is None and not self._target.repeats:
                return "expire", ExpireEffect(attempt=effect.attempt)
            at, final = datetime.now(UTC), failed is not None and failed.final
            return "fail", FailEffect(attempt=effect.attempt, reason=reason, at=at, final=final)
        self._failures = 0
        return "succeed", SucceedEffect(attempt=effect.attempt)

    async def _report(self, effect: Pending, path: str, outcome: Command) -> None:
        """Until the service has it, as it would be called again otherwise; also once the attempt has expired."""
        while True:
            try:
                await self._send(effect, path, outcome)
                return
            except ClientError as error:
                self._tell(error)
                if not isinstance(error, Unavailable) and not _is_kept_out(error):
                    return
            await asyncio.sleep(PAUSE_S)

    async def _send(self, effect: Pending, path: str, command: Command) -> None:
        await self._service.send(f"{path_of(self._path, effect.effect_id)}/{path}", command)
        self._told = ""

    def _tell(self, error: ClientError) -> None:
        """Once, until it goes on."""
        reason = str(error)
        if reason != self._told:
            fix = {"fix": FIX} if _is_kept_out(error) else {}
            log.error("effects wait for the service", target=self._target.name, reason=reason, **fix)
        self._told = reason


def _is_kept_out(error: ClientError) -> bool:
    return isinstance(error, Refused) and error.status in KEPT_OUT
