"""What a runner does while a target fails: the target rests, and only that one. And while its token is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from shared.effects import CallFailed, Content, Target
from shared.effects.runner import LONGEST_REST_S, PAUSE_S, Calls, Pending
from shared.http.client import Listed, Refused
from tests.waiting import Deadline

SLEEP = asyncio.sleep
COUNT = 20


class Memory:
    """The service, as the runner sees it. What has failed is pending again at once."""

    def __init__(self, *targets: str) -> None:
        self._attempts = {target: {f"{target}-{number}": 1 for number in range(COUNT)} for target in targets}
        self.done: set[str] = set()

    async def pages(self, path: str, model: type[Pending], pending_for: str) -> AsyncIterator[Listed[Pending]]:
        content = Content(target=pending_for, body="{}")
        found = [each for each in self._attempts[pending_for].items() if each[0] not in self.done]
        yield Listed([Pending(effect_id=id_, attempt=attempt, content=content) for id_, attempt in found], [])

    async def send(self, path: str, command: BaseModel) -> None:
        _, _, id_, verb = path.split("/")
        if verb == "attempt" and id_ in self.done:  # it was listed before
            raise Refused(409, "errand.not_pending", "")
        if verb == "fail":
            self._attempts[id_.partition("-")[0]][id_] += 1
        if verb == "succeed":
            self.done.add(id_)


class Guarded(Memory):
    """Refuses so many outcomes, as the token is no longer taken."""

    def __init__(self, target: str, status: int, refusals: int) -> None:
        super().__init__(target)
        self._status, self._refusals = status, refusals

    async def send(self, path: str, command: BaseModel) -> None:
        if path.endswith("/succeed") and self._refusals:
            self._refusals -= 1
            raise Refused(self._status, "token.invalid", "it has expired")
        await super().send(path, command)


@dataclass(frozen=True)
class Failing(Target):
    """Fails so many times. rest_s: that it asks for. heard: its calls, how many there were at a time, and rests."""

    failures: int = field(kw_only=True)
    rest_s: float = 0.0
    heard: list[float | str] = field(default_factory=list)
    now: list[str] = field(default_factory=list)

    async def send(self, effect_id: str, content: Content) -> None:
        self.now.append(effect_id)
        self.heard.append(f"{len(self.now)} at a time")
        await SLEEP(0.001)
        self.now.remove(effect_id)
        if len([each for each in self.heard if isinstance(each, str)]) <= self.failures:
            raise CallFailed("503", rest_s=self.rest_s)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Until the effects of the first target are done. The others' rests do not end meanwhile."""

    def run(service: Memory, *targets: Failing) -> None:
        resting: dict[object, Failing] = {}

        async def rest(seconds: float) -> None:
            if seconds <= PAUSE_S:
                await SLEEP(0)
                return
            target = resting[asyncio.current_task()]
            target.heard.append(seconds)
            await SLEEP(0 if target is targets[0] else 3600)

        async def until_done() -> None:
            for target in targets:
                calls = Calls(service, "/errands", target)  # type: ignore[arg-type]
                resting[asyncio.create_task(calls.run())] = target
            deadline = Deadline(30)
            while len([each for each in service.done if each.startswith(targets[0].name)]) < COUNT:
                deadline.check(service.done)
                await SLEEP(0.001)
            for task in resting:
                task.cancel()  # type: ignore[attr-defined]
            await asyncio.gather(*resting, return_exceptions=True)  # type: ignore[call-overload]

        monkeypatch.setattr(asyncio, "sleep", rest)
        asyncio.run(until_done())

    return run


def test_a_target_that_fails_gets_one_call_after_each_rest_until_one_succeeds(run: Callable[..., None]) -> None:
    target = Failing("down", failures=6, at_once=1, breaks_after=3, rests_s=30.0)
    run(Memory("down"), target)
    one = "1 at a time"
    assert target.heard == [one, one, one, *[30.0, one] * 4, *[one] * (COUNT - 1)]


def test_a_target_that_rests_holds_up_no_other(run: Callable[..., None]) -> None:
    down = Failing("down", failures=COUNT, at_once=4, breaks_after=3)
    up = Failing("up", failures=0)
    run(service := Memory("down", "up"), up, down)
    assert len(up.heard) == COUNT
    assert not any(id_.startswith("down") for id_ in service.done)


@pytest.mark.parametrize(("asked_s", "rests_s"), [(120.0, 120.0), (1e9, LONGEST_REST_S)])
def test_a_target_gets_no_call_for_as_long_as_it_asks_but_for_an_hour_at_most(
    asked_s: float, rests_s: float, run: Callable[..., None]
) -> None:
    target = Failing("busy", failures=1, rest_s=asked_s, at_once=1)
    run(Memory("busy"), target)
    call, rest, *_ = target.heard
    assert call == "1 at a time"
    assert rest == pytest.approx(rests_s, abs=1)


@pytest.mark.parametrize("status", [401, 403])
def test_an_outcome_waits_for_a_token_that_the_service_takes(status: int, run: Callable[..., None]) -> None:
    """Else it would be called again."""
    target = Failing("up", failures=0, at_once=1)
    with capture_logs() as said:
        run(Guarded("up", status, refusals=3), target)
    assert len(target.heard) == COUNT
    [told] = [each for each in said if each["event"] == "effects wait for the service"]
    assert "--token-file" in told["fix"]
