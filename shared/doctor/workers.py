"""Checks of workers: who is missing or superfluous, what they can't go on with, and what they have put aside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

from shared.doctor.finding import Finding, Severity, at, dev
from shared.doctor.snapshot import Snapshot, Told, Unread
from shared.http.cluster import Standby
from shared.http.dead_letters import DeadLetter
from shared.kafka.producer import MAX_RECORD_BYTES
from shared.operations.provision import setting_command
from shared.runtime.clock import TOLD_S
from shared.runtime.positions import Place
from shared.topology.topics import HISTORY_INDEX, Topology

_FIX = "; fix: "
_HOPELESS = frozenset({"message.bad", "command.overtaken"})  # the record itself is wrong, or too old
_MEND = "mend the code that its reason names, start the workers again"
_BEFORE_RETRY = {  # never the reason itself: a caller may have had a hand in it
    "message.unknown": "start the release that knows it, stop the older workers",
    **dict.fromkeys(("row.unreadable", "record.too_large"), "do what its reason says after `fix:`"),
}
_OLD_S = 86_400.0
_TOO_FAR_S = 30.0  # workers then refuse each other's requests, unless a broker has told them the time
_MANY = 1_000  # records that wait: less is done in a moment
_BEHIND_S = 60.0
_LARGE = 4  # a row counts as large from this part of its topic's limit on, and as too large from half of it


def check_members(seen: Snapshot) -> Iterator[Finding]:
    """Services without a worker whose records wait."""
    for topology in seen.topologies:
        waiting = sum(each.records for each in seen.unread() if each.group == topology.group)
        if waiting and not seen.members.get(topology.group):
            yield Finding(
                Severity.URGENT,
                "service.stands",
                f"no worker of {topology.service} runs",
                f"its group {topology.group} has no members, and {waiting:,} records wait",
                "nothing is decided, sent or shown of them",
                dev("worker", topology.service),
            )


def check_pace(seen: Snapshot) -> Iterator[Finding]:
    """Services that get more than they do. Timers that are not due yet wait as they should."""
    for topology in seen.topologies:
        before, later = (_waiting(topology.group, unread) for unread in (seen.unread(), seen.later))
        members = len(seen.members.get(topology.group, ()))
        if members and later > max(before, _MANY):
            more = members < topology.partitions
            yield Finding(
                Severity.WARNING,
                "service.slow",
                f"{topology.service} falls behind",
                f"{later:,} records wait, {later - before:,} more than a second before; {members} workers share "
                f"{topology.partitions} partitions",
                "answers and views are late, and later all the time",
                dev("worker", topology.service) if more else "use larger machines: more workers would be idle",
            )


def _waiting(group: str, unread: Iterable[Unread]) -> int:
    return sum(each.records for each in unread if each.group == group and ".timers." not in each.place.topic)


def check_answers(seen: Snapshot) -> Iterator[Finding]:
    for service, told in seen.told.items():
        for member in told.cluster.members:
            if not member.reachable:
                yield Finding(
                    Severity.WARNING,
                    "worker.silent",
                    f"a worker of {service} does not answer",
                    f"{told.url} cannot reach {member.url}, which is in the group",
                    "reads and commands that it owns the rows of are answered 503",
                    f"start {member.url} again; if it runs, look in its log",
                )


def check_troubles(seen: Snapshot) -> Iterator[Finding]:
    """What workers say that they can't go on with, but open transactions, of which `check_transactions` knows."""
    held_back = {place for place, _ in seen.long_open()}
    for service, told in seen.told.items():
        for member in told.cluster.members:
            for trouble in member.troubles or ():
                if (trouble.topic, trouble.partition) not in held_back:
                    place = f" in {trouble.topic}/{trouble.partition}" if trouble.topic else ""
                    reason, _, fix = trouble.reason.partition(_FIX)
                    yield Finding(
                        Severity.URGENT,
                        "worker.blocked",
                        f"{member.url} of {service} handles nothing{place}",
                        f"for {trouble.for_s:,.0f} s: {reason}",
                        "records wait; all others are handled",
                        fix or f"look in the log of {member.url}",
                    )


def check_surplus(seen: Snapshot) -> Iterator[Finding]:
    for topology, told in _by_topology(seen):
        members = told.cluster.members
        idle = [member.url for member in members if member.idle]
        useful = topology.partitions * (1 + seen.settings.standbys)
        surplus = min(len(idle), len(members) - useful)
        if surplus > 0:
            yield Finding(
                Severity.NOTICE,
                "worker.surplus",
                f"{surplus} workers of {topology.service} have nothing to do",
                f"{len(members)} workers share {topology.partitions} partitions and {seen.settings.standbys} standbys "
                f"of each: no more than {useful} can be of use",
                "they take memory and connections",
                dev("stop", topology.service, *chain(*(("--worker", url) for url in sorted(idle)[:surplus]))),
            )


def check_standbys(seen: Snapshot) -> Iterator[Finding]:
    wanted = seen.settings.standbys
    for topology, told in _by_topology(seen):
        partitions = [each for table in told.cluster.tables.values() for each in table]
        lacking = [each for each in partitions if len(each.standbys) < wanted]
        if lacking and len(told.cluster.members) <= wanted:
            yield Finding(
                Severity.WARNING,
                "standby.missing",
                f"{topology.service} has too few workers for ONEFOLD_STANDBYS={wanted}",
                f"{len(lacking)} of {len(partitions)} partitions of its tables have fewer than {wanted} warm copies, "
                f"with {len(told.cluster.members)} workers",
                "whoever takes over from a worker that fails restores all its rows from the changelogs first",
                dev("worker", topology.service),
            )


def check_lags(seen: Snapshot) -> Iterator[Finding]:
    """Workers whose standbys do not follow. Those that are still being restored are not late."""
    for service, told in seen.told.items():
        behind: dict[str, list[Standby]] = defaultdict(list)
        for each in (each for table in told.cluster.tables.values() for part in table for each in part.standbys):
            if each.restored and each.lag_records >= _MANY and (each.lag_seconds or 0.0) >= _BEHIND_S:
                behind[each.url].append(each)
        for url, standbys in behind.items():
            records = max(each.lag_records for each in standbys)
            seconds = max(each.lag_seconds or 0.0 for each in standbys)
            yield Finding(
                Severity.WARNING,
                "standby.behind",
                f"standbys of {url} of {service} do not keep up",
                f"{len(standbys)} partitions of tables, by up to {records:,} records and {seconds:,.0f} s",
                "whoever takes over there restores these first, and answers nothing meanwhile",
                f"give {url} more CPU or a faster disk; if it has time, look in its log",
            )


def check_clocks(seen: Snapshot) -> Iterator[Finding]:
    for service, told in seen.told.items():
        for member in told.cluster.members:
            ahead_s = member.clock_ahead_s or 0.0
            if abs(ahead_s) >= TOLD_S:
                yield Finding(
                    Severity.URGENT if abs(ahead_s) >= _TOO_FAR_S else Severity.WARNING,
                    "worker.clock",
                    f"the clock of {member.url} of {service} is wrong",
                    f"it is {abs(ahead_s):,.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the brokers'",
                    "from 30 s on, workers refuse the requests of one that has not written anything yet",
                    at(member.url, "sudo", "timedatectl", "set-ntp", "true"),
                )


def check_letters(seen: Snapshot) -> Iterator[Finding]:
    """What is parked, of each service: first it is tried again, then what fails again is given up, one by one."""
    for service, told in seen.told.items():
        if not told.letters:
            continue
        ages_s = {each.id: seen.age_s(Place(each.topic, each.partition), each.offset) or 0.0 for each in told.letters}
        oldest = max(told.letters, key=lambda each: ages_s[each.id])
        age_s, behind = ages_s[oldest.id], sum(each.behind for each in told.letters)
        yield Finding(
            Severity.URGENT if behind or age_s >= _OLD_S else Severity.WARNING,
            "record.parked",
            f"{len(told.letters):,} keys of {service} are parked",
            f"for up to {age_s:,.0f} s, with {behind:,} records behind them; the oldest is {oldest.id}: {oldest.code}, "
            f"{oldest.reason}",
            "their records have had no effect, and each later record of the key waits unless it is a command",
            _cure_of(service, told, oldest),
        )


def check_rows(seen: Snapshot) -> Iterator[Finding]:
    """Rows that are large beside what their changelog takes in one record."""
    sizes: dict[str, int] = {}
    for member in (member for told in seen.told.values() for member in told.cluster.members):
        for changelog, size in (member.large_rows or {}).items():
            sizes[changelog] = max(size, sizes.get(changelog, 0))
    for changelog in sorted(sizes.keys() & seen.found.keys()):
        size, limit = sizes[changelog], int(seen.found[changelog].config["max.message.bytes"])
        if size * _LARGE >= limit:
            wanted = min(2 * _LARGE * size, MAX_RECORD_BYTES)
            yield Finding(
                Severity.URGENT if size * 2 >= limit else Severity.WARNING,
                "row.large",
                f"a row of {changelog} grows towards the limit of a record",
                f"it has {size:,} bytes, and its topic takes {limit:,}",
                "what makes it larger than that is parked; a larger limit only gives time to bound what it keeps",
                f"{dev('kafka')} {setting_command(changelog, 'max.message.bytes', str(wanted))}",
            )


def _cure_of(service: str, told: Told, oldest: DeadLetter) -> str:
    at = ["--url", told.url]
    retry = dev("dead-letters", "retry", service, *at)
    if any(each.attempts <= 1 for each in told.letters):
        return retry
    first = next(filter(_is_hopeless, told.letters), None)
    if first is None:
        return f"{_BEFORE_RETRY.get(oldest.code, _MEND)}, then {retry}"
    reason = ["--reason", f"failed again: {first.code}"]
    return dev("dead-letters", "discard", service, first.id, "--offset", str(first.offset), *reason, *at)


def _is_hopeless(letter: DeadLetter) -> bool:
    """Whether no release will handle it, once it has failed again. An event can't be left out of a history."""
    return letter.code in _HOPELESS and letter.processor != HISTORY_INDEX


def _by_topology(seen: Snapshot) -> Iterator[tuple[Topology, Told]]:
    for topology in seen.topologies:
        if (told := seen.told.get(topology.service)) is not None:
            yield topology, told
