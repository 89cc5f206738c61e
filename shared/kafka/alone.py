"""One process at a time, by the brokers' word: the one that a group has given its only partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from confluent_kafka import Consumer, KafkaException

from shared.domain.errors import OnefoldError
from shared.kafka.access import client_config
from shared.kafka.brokers import explained

SESSION_S = 6.0  # the shortest that brokers allow by default: one that was killed holds up the next for as long
_PATIENCE_S = 2.5 * SESSION_S
_POLL_S = 0.1
_MEMBER = {
    "enable.auto.commit": False,
    "partition.assignment.strategy": "cooperative-sticky",  # a newcomer takes nothing from who is there
    "session.timeout.ms": int(SESSION_S * 1000),
    "heartbeat.interval.ms": int(SESSION_S * 1000 / 5),
    "max.poll.interval.ms": 24 * 3_600_000,  # whoever lives may be busy
    "log_level": 0,
}


class NotAlone(OnefoldError):
    """Another process does the same.

    Operator action: let it end, then do this again. One that was killed counts until its session times out.
    """


@contextmanager
def alone(bootstrap: str, group: str, topic: str) -> Iterator[Callable[[], None]]:
    """Inside, no other process is, of those that name the same group. Gives a function that raises NotAlone once that
    is no longer certain: brokers have not heard of this process for SESSION_S.

    topic: has one partition. Raises NotAlone or BrokersUnavailable.
    """
    with closing(Consumer(client_config(bootstrap) | _MEMBER | {"group.id": group})) as member:
        lost: list[object] = []

        def check() -> None:
            if not _assigned(bootstrap, member, 0.0) or lost:
                raise NotAlone(f"this `{group}` was not heard of for {SESSION_S:.0f} s; fix: do it again")

        member.subscribe([topic], on_lost=lambda _, places: lost.extend(places))
        deadline = time.monotonic() + _PATIENCE_S
        while not _assigned(bootstrap, member, _POLL_S):
            if time.monotonic() > deadline:
                raise NotAlone(f"another `{group}` is under way; fix: let it end, then see what is left to do")
        yield check


def _assigned(bootstrap: str, member: Consumer, wait_s: float) -> bool:
    try:
        member.poll(wait_s)
        return bool(member.assignment())
    except KafkaException as failure:
        raise explained(bootstrap, failure) from failure
