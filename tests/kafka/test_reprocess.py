"""Reprocessing, on a real broker: what acts beside a view goes on where it stands."""

from collections.abc import Callable

from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.operations.reprocess import Reprocessing
from shared.parking.requests import noted_begins
from shared.runtime.settings import Settings
from shared.topology.replay import Replay
from shared.topology.topics import Table, Topic, Topology


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
        assert noted_begins(brokers, gifts)[0] == {topic: {"policy.welcome": 2}}
