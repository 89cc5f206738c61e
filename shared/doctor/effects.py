"""Checks of effects: calls outside that nobody makes, that fail, or that a person has to decide about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Outstanding, Snapshot

_LATE_S = 60.0  # a runner looks twice a second
_FAILS = 5  # effects that wait for another attempt: then a runner takes the target for broken
_AGAIN = 2  # attempts, of which the second comes half a minute later
_TYPED = 20


def check_effects(seen: Snapshot) -> Iterator[Finding]:
    for service, told in seen.told.items():
        by_target: dict[str, list[Outstanding]] = {}
        for each in told.effects:
            by_target.setdefault(each.target, []).append(each)
        for target, effects in by_target.items():
            yield from _stuck(service, told.url, target, effects)
            yield from _late(service, target, effects)


def _stuck(service: str, url: str, target: str, effects: Sequence[Outstanding]) -> Iterator[Finding]:
    if given_up := [each for each in effects if each.phase == "given_up"]:
        yield Finding(
            Severity.WARNING,
            "effect.stuck",
            f"{len(given_up)} effects of {service} for {target} are given up",
            f"the first is {given_up[0].id}, after {given_up[0].attempt} attempts: {given_up[0].reason}",
            "nobody calls for them any more; what is given up again, a person has to do otherwise, and to `settle`",
            dev("effect", "repeat", service, *(each.id for each in given_up[:_TYPED]), "--url", url),
        )
    if lost := [each for each in effects if each.phase == "lost"]:
        one = [service, lost[0].id, "--url", url]
        yield Finding(
            Severity.WARNING,
            "effect.lost",
            f"of {len(lost)} effects of {service} nobody knows whether {target} has had them",
            f"the first is {lost[0].id}, after {lost[0].attempt} attempts",
            "they are not called for again, as a repeat might do harm",
            f"ask {target} for {lost[0].id}; if it has it, {dev('effect', 'settle', *one)}; if not, "
            f"{dev('effect', 'repeat', *one)}",
        )


def _late(service: str, target: str, effects: Sequence[Outstanding]) -> Iterator[Finding]:
    failed = [each for each in effects if each.phase == "waiting"]
    late_s = max((each.waits_s for each in effects if each.phase == "pending"), default=0.0)
    if len(failed) >= _FAILS or any(each.attempt >= _AGAIN for each in failed):
        yield Finding(
            Severity.WARNING,
            "effect.fails",
            f"calls to {target} of {service} fail",
            f"{len(failed)} effects wait for another attempt, the first because of: {failed[0].reason}",
            "what waits is called for later and later, and given up in the end; after five failures in a row the "
            "runner makes one call at a time",
            f"mend {target}, or correct its address and secret where the runner is started: what waits goes on by "
            f"itself",
        )
    elif late_s >= _LATE_S:
        yield Finding(
            Severity.WARNING,
            "effect.stands",
            f"nobody calls {target} for {service}",
            f"effects are pending for up to {late_s:,.0f} s, and no call has failed: no runner runs, or none is told "
            f"its address",
            "what they are to do outside is not done",
            dev("effect", "run", service),
        )
