"""Timers: commands that wait in the log until they are old enough."""

from __future__ import annotations

from dataclasses import dataclass

from shared.topology.topics import Topic


@dataclass(frozen=True, kw_only=True)
class Timer:
    """The records of `source` go on to `target`, unchanged, once they are `delay_s` old: they survive restarts.

    source   the topic of timers, of the kind `timers`, keyed as `target`.
    target   the topic of commands that gets them.
    delay_s  in seconds, by the brokers' time of the record.
    due      the field of its commands, an Instant, that says when each is due. One that is old enough, but not due by
             then, goes to the end of `source`, to be as old once more: it comes up to `delay_s` late, and is one more
             record of `source` each time. None: it is due when it is old enough.

    All records of a source wait equally long, so they fall due in their order in the log; another wait needs another
    source, `….timers.v2`, because only the kind `timers` is mirrored. They keep their `issued_at`, the time of what set
    the timer, and so do the events that they lead to. A chain of timers drifts, unless each says when it is due:
    docs/calendar.md.

    A wait that is a setting is put into it by app.py, with `replace`.

    Raises ValueError for a `due` without a `delay_s`.
    """

    source: Topic
    target: Topic
    delay_s: float
    due: str | None = None

    def __post_init__(self) -> None:
        if self.due is not None and self.delay_s <= 0:
            raise ValueError(f"{self.source.name} is read again without a pause; fix: give its Timer a delay_s")
