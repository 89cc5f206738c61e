"""`status`: who owns what, how far behind, what is parked and what would be lost; of every service at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from shared.dev.asking import Silent, ask
from shared.dev.dead_letters import letters_of
from shared.dev.stages import StageFailed
from shared.http.cluster import Cluster, SourcePartition, TablePartition
from shared.operations.provision import ProvisionError, declared_topics, differences, found_topics, placed
from shared.runtime.settings import Settings
from shared.runtime.status import Trouble
from shared.topology.topics import KEPT_FOR_EVER, Topology

_DUE = 0.5  # of a topic's retention: a record that has gone unread for so long is in danger


class Line(NamedTuple):
    """wrong: somebody has to act on it."""

    about: str
    text: str
    wrong: bool = False


Report = Mapping[str, Sequence[Line]]


class _Asked(NamedTuple):
    """What the first worker that answers says about its service, its URL, and the refusals of those before it.

    Without an answer there is at least one refusal.
    """

    refusals: Sequence[Line]
    url: str = ""
    cluster: Cluster | None = None


def status(topologies: Sequence[Topology], workers: Mapping[str, Sequence[str]], settings: Settings) -> Report:
    """The lines of each service, then of the brokers. workers: their URLs, by service, as far as they are known."""
    asked = {each.service: _asked(each.service, workers.get(each.service)) for each in topologies}
    report = {name: list(_service(each)) for name, each in asked.items()}
    clusters = {name: each.cluster for name, each in asked.items()}
    return report | {"brokers": list(_brokers(topologies, clusters, settings))}


def shown(report: Report) -> Iterator[str]:
    """The report as text; what is wrong begins with an exclamation mark."""
    for name, lines in report.items():
        for number, line in enumerate(lines):
            yield f"{'!' if line.wrong else ' '} {name if number == 0 else '':<12} {line.about:<10} {line.text}"


def _asked(service: str, urls: Sequence[str] | None) -> _Asked:
    """urls: empty where none of its workers runs; None where that is unknown."""
    refusals: list[Line] = []
    for url in urls or ():
        try:
            return _Asked(refusals, url, Cluster.model_validate(ask(f"{url}/cluster")))
        except Silent:
            continue  # the others report it as a silent member
        except StageFailed as refusal:
            refusals.append(_refused("worker", refusal))
        except ValidationError:
            refusals.append(Line("worker", f"{url}/cluster answers what this release does not understand", wrong=True))
    if urls is None:
        nobody = f"unknown; fix: name one with --url {service}=URL, or `python3 dev.py up`"
    else:
        nobody = f"none answers{' at ' if urls else ''}{', '.join(urls)}: its records wait"
    return _Asked(refusals or [Line("workers", nobody, wrong=True)])


def _refused(about: str, refusal: StageFailed) -> Line:
    return Line(about, f"{refusal.problem}; fix: {refusal.fix}", wrong=True)


def _service(asked: _Asked) -> Iterator[Line]:
    yield from asked.refusals
    cluster = asked.cluster
    if cluster is None:
        return
    owned = _owned(cluster)
    for member in cluster.members:
        yield Line("worker", f"{member.url}  {member.state}, {_places(owned[member.url])}", not member.ready)
        yield from map(_blocked, member.troubles or ())
    if orphans := {p.partition for table in cluster.tables.values() for p in table if p.active is None}:
        yield Line("ownerless", _places(orphans), wrong=True)
    yield _behind(cluster)
    if held_back := {each.partition for places in cluster.topics.values() for each in places if each.held_back}:
        yield Line("shadows", f"{_places(held_back)}: another version acts there, and this one holds back")
    yield from _restoring([partition for table in cluster.tables.values() for partition in table])
    yield _parked(cluster.service, asked.url)


def _blocked(trouble: Trouble) -> Line:
    place = f"{trouble.topic}/{trouble.partition}, " if trouble.topic else ""
    return Line("blocked", f"{place}for {trouble.for_s:,.0f} s: {trouble.reason}", wrong=True)


def _restoring(partitions: Sequence[TablePartition]) -> Iterator[Line]:
    if to_restore := sum(each.to_restore or 0 for each in partitions):
        longest_s = max(each.left_s or 0.0 for each in partitions)
        left = f", about {longest_s:,.0f} s" if longest_s else ""
        yield Line("restoring", f"{to_restore:,} changelog records to go{left}", wrong=True)


def _parked(service: str, url: str) -> Line:
    try:
        parked = sum(1 for _ in letters_of(url))
    except StageFailed as refusal:
        return _refused("parked", refusal)
    text = f"{parked} keys; see `dead-letters list {service}`" if parked else "nothing"
    return Line("parked", text, parked > 0)


def _owned(cluster: Cluster) -> dict[str, set[int]]:
    owned: dict[str, set[int]] = defaultdict(set)
    for partition in (p for table in cluster.tables.values() for p in table):
        if partition.active is not None:
            owned[partition.active].add(partition.partition)
    return owned


def _places(partitions: set[int]) -> str:
    if not partitions:
        return "no partition"
    return f"partitions {' '.join(map(str, sorted(partitions)))}"


def _behind(cluster: Cluster) -> Line:
    waiting = {topic: [p for p in places if p.lag_records] for topic, places in cluster.topics.items()}
    late = [
        f"{sum(p.lag_records for p in places):,} of {topic}{_for(places)}"
        for topic, places in waiting.items()
        if places
    ]
    return Line("behind", "; ".join(late) or "nothing waits")


def _for(places: Sequence[SourcePartition]) -> str:
    """How long they wait; a worker knows it from the first record that it has handled itself."""
    known = [place.lag_seconds for place in places if place.lag_seconds is not None]
    return f", for {max(known):.1f} s" if known else ""


def _brokers(
    topologies: Sequence[Topology], clusters: Mapping[str, Cluster | None], settings: Settings
) -> Iterator[Line]:
    try:
        yield from _topics(topologies, settings)
    except ProvisionError as error:
        yield Line("topics", str(error), wrong=True)
    yield _retention(topologies, clusters)


def _topics(topologies: Sequence[Topology], settings: Settings) -> Iterator[Line]:
    declared = declared_topics(topologies, settings)
    off = sorted({each.topic for each in differences(declared, found_topics(declared, settings.bootstrap))})
    text = f"not as declared: {', '.join(off)}; see `topics`" if off else f"{len(declared)}, as declared"
    yield Line("topics", text, bool(off))
    copies = placed(settings.bootstrap).copies
    yield next_loss([len(each.in_sync) for (topic, _), each in copies.items() if topic in declared], settings)


def next_loss(in_sync: Sequence[int], settings: Settings) -> Line:
    """What the loss of one more broker would cost. in_sync: the copies of each partition."""
    lone = sum(copies <= 1 for copies in in_sync)
    scarce = sum(copies <= settings.min_isr for copies in in_sync)
    missing = sum(copies < settings.replication for copies in in_sync)
    if lone:
        cost = f"the records of {lone} partitions, which have no second copy"
    else:
        cost = f"writes to {scarce} partitions until it is back" if scarce else "nothing"
    out_of_sync = f"; {missing} partitions have fewer than {settings.replication} copies in sync" if missing else ""
    return Line("at risk", f"if one more broker fails: {cost}{out_of_sync}", bool(missing))


def _retention(topologies: Sequence[Topology], clusters: Mapping[str, Cluster | None]) -> Line:
    """clusters: by service; None where no worker says which records are not handled yet."""
    kept_ms = {topic.name: topic.retention_ms for each in topologies for topic in each.all_topics()}
    finite_s = {name: kept / 1000 for name, kept in kept_ms.items() if kept != KEPT_FOR_EVER}
    places = [
        (name, place) for name in finite_s for each in clusters.values() if each for place in each.topics.get(name, ())
    ]
    due = list(_due(finite_s, places))
    unknown = [name for name, cluster in clusters.items() if finite_s and cluster is None]
    untold = f"; unknown for {', '.join(unknown)}, where no worker answers" if unknown else ""
    unread = [f"{name}/{place.partition}" for name, place in places if place.lag_records and place.lag_seconds is None]
    untold += f"; unknown of {', '.join(unread)}, where no record was handled yet" if unread else ""
    text = f"about to remove unread records of {', '.join(due) or 'no topic'}{untold}"
    return Line("retention", text, bool(due or unknown))  # a timer that is not due is of unknown age, too


def _due(finite_s: Mapping[str, float], places: Iterable[tuple[str, SourcePartition]]) -> Iterator[str]:
    """Partitions where retention is about to reach unhandled records, and when it will."""
    for topic, place in places:
        kept_s, lag_s = finite_s[topic], place.lag_seconds or 0.0
        if lag_s > _DUE * kept_s:
            yield f"{topic}/{place.partition} in {max(kept_s - lag_s, 0.0):,.0f} s"
