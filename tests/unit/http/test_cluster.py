"""The picture of all members is assembled from what each says about itself."""

from __future__ import annotations

from collections.abc import Iterator

from shared.http.cluster import assemble
from shared.runtime.status import ReplicaStatus, SourceStatus, Status

A, B, C = "http://a", "http://b", "http://c"


def replica(partition: int, role: str, lag: int = 0, to_restore: int = 0) -> ReplicaStatus:
    return ReplicaStatus.model_validate(
        {
            "table": "accounts",
            "partition": partition,
            "role": role,
            "restored": to_restore == 0,
            "position": 10,
            "target": 10 + to_restore,
            "to_restore": to_restore,
            "left_s": to_restore / 2,
            "lag_records": lag,
            "lag_seconds": lag / 10,
        }
    )


def status(url: str, *replicas: ReplicaStatus) -> Status:
    return Status(
        service="accounts",
        instance=url[-1],
        url=url,
        ready=all(each.restored for each in replicas),
        idle=not replicas,
        owners={"accounts": {0: A, 1: B, 2: C}},
        replicas=list(replicas),
        sources=[
            SourceStatus(topic="accounts.commands.v1", partition=r.partition, position=5, lag_records=1, lag_seconds=2)
            for r in replicas
            if r.role == "active"
        ],
        handled=0,
        commits=0,
        aborts=0,
        waiting=0,
    )


def test_each_partition_has_its_owner_its_standbys_and_how_far_they_are() -> None:
    a = status(A, replica(0, "active", to_restore=7), replica(1, "standby", lag=3))
    b = status(B, replica(1, "active"), replica(0, "standby"))
    found = assemble(a, {A: a, B: b, C: None}, partitions=4)
    first, second, third, fourth = found.tables["accounts"]
    assert (first.active, first.restored, first.to_restore, first.left_s) == (A, False, 7, 3.5)
    assert [(each.url, each.lag_records) for each in first.standbys] == [(B, 0)]
    assert [(each.url, each.lag_records, each.lag_seconds) for each in second.standbys] == [(A, 3, 0.3)]
    assert (third.active, third.restored, third.standbys) == (C, None, [])
    assert (fourth.active, fourth.restored) == (None, None)


def test_a_partition_whose_new_owner_has_not_taken_over_is_not_restored() -> None:
    b = status(B, replica(1, "standby"))
    _, second = assemble(b, {B: b}, partitions=2).tables["accounts"]
    assert (second.active, second.restored, second.to_restore) == (B, None, None)


def test_a_silent_member_is_shown_as_unreachable() -> None:
    a = status(A, replica(0, "active"))
    members = {each.url: each for each in assemble(a, {A: a, C: None}, 1).members}
    assert (members[A].reachable, members[A].ready, members[A].idle) == (True, True, False)
    assert (members[C].reachable, members[C].ready) == (False, None)


def test_source_partitions_are_listed_by_topic() -> None:
    a, b = status(A, replica(2, "active")), status(B, replica(0, "active"), replica(2, "standby"))
    topics = assemble(a, {A: a, B: b}, 3).topics
    assert [(each.partition, each.active, each.lag_records) for each in topics["accounts.commands.v1"]] == [
        (0, B, 1),
        (2, A, 1),
    ]


def test_what_a_member_holds_is_looked_through_once_however_many_partitions_there_are() -> None:
    """The worker that is asked decides commands meanwhile, in the same thread; a page asks it twice a second."""

    class Replicas(list[ReplicaStatus]):
        looks = 0

        def __iter__(self) -> Iterator[ReplicaStatus]:
            self.looks += 1
            return super().__iter__()

    a, b = status(A, replica(0, "active")), status(B, replica(1, "active"))
    b.replicas = held = Replicas(replica(partition, "standby") for partition in range(100))
    assert len(assemble(a, {A: a, B: b}, 100).tables["accounts"][99].standbys) == 1
    assert held.looks == 1
