"""`story`: all that a message came from and led to, as a tree that shows where its time went."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from shutil import get_terminal_size

import typer

from shared.dev.stages import stage
from shared.operations.provision import load_topologies
from shared.runtime.settings import Settings
from shared.stories.search import RECORDS_MAX, Progress, find_story
from shared.stories.story import Step, Story

_BAR = 24
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")


def story_of(text: str, settings: Settings) -> Story:
    """Shows how far the search is, with its rate and the time left, if it takes long. Raises as `find_story`."""
    if not sys.stderr.isatty():
        return find_story(settings.bootstrap, load_topologies(), text, now_ms=_now_ms())
    with stage("", "search") as now:

        def tell(far: Progress) -> None:
            doing = f"records, {far.per_s:,.0f}/s, at most {far.left_s:,.0f} s left;"
            now.progress(far.read, far.read + far.left, doing)

        found = find_story(settings.bootstrap, load_topologies(), text, now_ms=_now_ms(), tell=tell)
        now.done = f"{found.records_read:,} records read"
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def drawn(story: Story, colour: bool) -> Iterator[str]:
    """The tree: what, how long it waited, when that was within the story, and where it lies."""
    steps = [*map(_printable, story.steps)]
    yield f"story {_shown(story.correlation_id)}"
    if story.circular:
        yield f"! {story.circular} records are not shown: their causes go round in a circle, as only strangers write"
    if not steps:
        return
    began, ended = min(each.at for each in steps), max(each.at for each in steps)
    services = list(dict.fromkeys(each.service for each in steps))
    yield (
        f"{len(steps)} records in {', '.join(services)}; {began:%Y-%m-%d %H:%M:%S.%f}"[:-3]
        + f" UTC, {_span(ended - began)} in all"
    )
    yield ""
    branches = _branches(steps)
    texts = [f"{branch}{each.type}  {each.key or ''}".rstrip() for branch, each in zip(branches, steps, strict=True)]
    width = max(map(len, texts))
    wide = get_terminal_size((160, 24)).columns
    for text, branch, each in zip(texts, branches, steps, strict=True):
        waited = "" if each.waited_ms is None else f"+{_span(timedelta(milliseconds=each.waited_ms))}"
        line = f"{text:<{width}}  {waited:>9}  {_bar(each, began, ended)}  {each.place}"
        if len(line) > wide:  # the picture is the first to go: where it lies is what one copies
            line = f"{text:<{width}}  {waited:>9}  {each.place}"
        yield _painted(line, branch, each, services) if colour else line
        for failure in each.failures:
            told = f"{' ' * len(branch)}! parked at {failure.at:%H:%M:%S}: {_shown(failure.code)}"
            yield typer.style(told, fg="red") if colour else told
    yield from _missing(story, steps)


def _printable(each: Step) -> Step:
    """With what others chose in it escaped, so that it can't steer the terminal."""
    texts = {"type": each.type, "key": each.key or "", "causation_id": each.causation_id or ""}
    return each.model_copy(update={name: _shown(text) for name, text in texts.items()})


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _painted(line: str, branch: str, each: Step, services: Sequence[str]) -> str:
    """The type in its service's colour."""
    named = typer.style(each.type, fg=_COLOURS[services.index(each.service) % len(_COLOURS)], bold=True)
    start = len(branch)
    return line[:start] + named + line[start + len(each.type) :]


def _branches(steps: Sequence[Step]) -> Sequence[str]:
    """What leads to each step in the tree, such as `│  └─ `."""
    found: list[str] = []
    going_on: set[int] = set()  # the depths at which another effect of the same cause follows
    for each in reversed(steps):
        lines = "".join("│  " if depth in going_on else "   " for depth in range(1, each.depth))
        found.append("" if not each.depth else lines + ("├─ " if each.depth in going_on else "└─ "))
        going_on = {depth for depth in going_on if depth < each.depth} | {each.depth}
    return found[::-1]


def _bar(each: Step, began: datetime, ended: datetime) -> str:
    """From its cause to itself, within the whole story."""
    whole_ms = max(1.0, _ms(ended - began))
    until = round(_ms(each.at - began) / whole_ms * (_BAR - 1))
    since = round(max(0.0, _ms(each.at - began) - (each.waited_ms or 0)) / whole_ms * (_BAR - 1))
    return "·" * since + "━" * (until - since) + "●" + "·" * (_BAR - 1 - until)


def _ms(span: timedelta) -> float:
    return span / timedelta(milliseconds=1)


def _span(span: timedelta) -> str:
    ms = _ms(span)
    if ms < 10_000:
        return f"{ms:,.0f} ms"
    return f"{ms / 1000:,.1f} s" if ms < 600_000 else f"{ms / 60_000:,.0f} min"


def _missing(story: Story, steps: Sequence[Step]) -> Iterator[str]:
    """What the reader has to know of what is not in the tree."""
    lost = [each for each in steps if each.causation_id and each.cause is None]
    for each in lost:
        yield f"! the cause of {each.place}, {each.causation_id}, was not found: it is in no topic that could be read"
    done = {each.id for each in steps if each.kind != "timers"}
    waiting = [each for each in steps if each.kind == "timers" and each.id not in done]
    for each in waiting:
        yield f"! a timer is open: {each.place}"
    if not (story.whole or story.circular or lost or waiting or story.unread):
        most = f"more than {RECORDS_MAX:,} records and dead letters, the most that are shown"
        yield f"! it has {most}; fix: an Idempotency-Key for each request"
    if story.unread:
        yield f"! not read: {', '.join(story.unread)}; fix: as a principal that may read them, or `provision`"
    if story.read_until is not None:
        yield f"read until {story.read_until:%Y-%m-%d %H:%M:%S} UTC, when nothing of it had come for long"
    yield f"{story.records_read:,} records read in {story.seconds:.1f} s"
