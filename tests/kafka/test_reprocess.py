"""Reprocessing, on a real broker: what acts beside a view goes on where it stands."""

from collections.abc import Callable

import pytest

from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.operations.reprocess import Reprocessing
from shared.parking.parked import STOOD
from shared.parking.requests import noted_begins
from shared.runtime.settings import Settings
from shared.topology.replay import Replay
from shared.topology.topics import Table, Topic, Topology


@pytest.mark.broker
def test_what_acts_beside_a_view_is_noted_where_it_stood_also_by_a_second_run(
    bootstrap: str, topic: str, put: Callable[..., None]
) -> None:
    seen = Table("seen", source=Topic(topic))
    gifts = Topology("gifts", (), (seen,), partitions=2)
    provision([gifts], Settings(bootstrap=bootstrap))
    put(b"a", b"b")
    brokers, reprocessing = Brokers(bootstrap), Reprocessing(bootstrap)
    brokers.commit(gifts.group, {topic: {0: 2}})
    replay = Replay((seen,), (seen.source,), (seen.source,), passing=((seen.source, "policy.welcome"),))
    for _ in range(2):
        reprocessing.carry_out(reprocessing.plan(gifts, replay))
        assert brokers.positions(gifts.group)[topic] == {0: 0}
        assert noted_begins(brokers, gifts)[0] == {topic: {STOOD: 2, "policy.welcome": 2}}


def test_what_copies_again_is_no_more_noted_and_a_source_that_was_not_read_is_not_moved(
    bootstrap: str, topic: str, put: Callable[..., None]
) -> None:
    copies = Topic("gifts.copies.v1")
    copied = Table("copied", source=copies)
    gifts = Topology("gifts", (copies,), (copied,), partitions=2, version=2)
    provision([gifts], Settings(bootstrap=bootstrap))
    put(b"a", b"b")
    brokers, reprocessing = Brokers(bootstrap), Reprocessing(bootstrap)
    source, name = Topic(topic), f"rekey.{topic}"
    beside = Replay((copied,), (source,), (source,), passing=((source, name),))
    again = Replay((copied,), (copies,), (source,), skipped=(copies,), makers=((source, name),))
    unread = reprocessing.plan(gifts, again)
    assert {move.place.topic for move in unread.moves} == {copies.name}
    assert not unread.begins
    brokers.commit(gifts.group, {topic: {0: 2}})
    for replay in (beside, again):
        reprocessing.carry_out(reprocessing.plan(gifts, replay))
    assert noted_begins(brokers, gifts) == {0: {topic: {STOOD: 2}}}
    assert brokers.positions(gifts.group)[topic] == {0: 0}
