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

    All records of a source wait equally long, so they fall due in their order in the log; another wait needs another
    source, `….timers.v2`, because only the kind `timers` is mirrored. They keep their `issued_at`, the time of what set
    the timer, and so do the events that they lead to. A chain of timers drifts: dates of a calendar need a scheduler of
    yours, which sends commands that carry the date.

    A wait that is a setting is put into it by app.py, with `replace`.
    """

    source: Topic
    target: Topic
    delay_s: float
