"""What workers say of themselves is told with what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shared.doctor.examine import examine
from shared.doctor.finding import Severity
from shared.doctor.snapshot import Snapshot, Unread
from shared.http.dead_letters import DeadLetter
from shared.kafka.brokers import Bounds
from shared.runtime.positions import Place
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.unit.doctor.healthy import GROUP, HEALTHY, NOW, A, B, member, only, told

BLOCKED = {"topic": COMMANDS.name, "partition": 1, "for_s": 40.0, "reason": "batches can't be committed; fix: start it"}


@pytest.mark.parametrize(
    ("second", "code", "severity", "cure"),
    [
        ({"reachable": False}, "worker.silent", Severity.WARNING, f"start {B} again"),
        ({"troubles": [BLOCKED]}, "worker.blocked", Severity.URGENT, "start it"),
        ({"clock_ahead_s": 6.0}, "worker.clock", Severity.WARNING, "ssh b sudo timedatectl set-ntp true"),
        ({"clock_ahead_s": -31.0}, "worker.clock", Severity.URGENT, "ssh b sudo timedatectl set-ntp true"),
    ],
)
def test_a_worker_in_trouble_is_named(second: dict[str, Any], code: str, severity: Severity, cure: str) -> None:
    finding = only(replace(HEALTHY, told=told(member(A), member(B, **second))))
    assert (finding.code, finding.severity) == (code, severity)
    assert B in finding.what + finding.evidence
    assert finding.cure.startswith(cure)


def test_an_open_transaction_is_not_told_twice() -> None:
    place = Place(COMMANDS.name, 1)
    seen = replace(HEALTHY, told=told(member(A, troubles=[BLOCKED]), member(B)))
    seen = replace(seen, bounds={**seen.bounds, place: Bounds(0, 5, 10)}, stamped={(place, 5): NOW - 60})
    assert [each.code for each in examine(seen)] == ["transaction.open"]


def test_a_worker_is_blocked_also_where_others_write() -> None:
    place = Place(COMMANDS.name, 1)
    seen = replace(HEALTHY, told=told(member(A, troubles=[BLOCKED]), member(B)))
    seen = replace(seen, bounds={**seen.bounds, place: Bounds(0, 5, 10)}, stamped={(place, 5): NOW - 0.01})
    assert only(seen).code == "worker.blocked"


def test_only_workers_without_any_use_are_surplus() -> None:
    members = [member(f"http://w{n}", idle=n >= TOPOLOGY.partitions) for n in range(TOPOLOGY.partitions + 2)]
    alone = HEALTHY.settings.model_copy(update={"standbys": 0})
    finding = only(replace(HEALTHY, told=told(*members), settings=alone))
    stop = "python3 dev.py stop accounts --worker"
    assert (finding.code, finding.cure) == ("worker.surplus", f"{stop} http://w8 --worker http://w9")
    assert examine(replace(HEALTHY, told=told(*members))) == []  # they hold standbys
    more = [member(f"http://w{n:02}", idle=n >= TOPOLOGY.partitions) for n in range(2 * TOPOLOGY.partitions + 1)]
    assert only(replace(HEALTHY, told=told(*more))).cure == f"{stop} http://w08"


def test_standbys_need_workers() -> None:
    finding = only(replace(HEALTHY, told=told(member(A), standbys=0)))
    assert (finding.code, finding.cure) == ("standby.missing", "python3 dev.py worker accounts")
    assert examine(replace(HEALTHY, told=told(standbys=0))) == []  # they are on their way


@pytest.mark.parametrize(
    ("restored", "records", "seconds", "is_told"),
    [
        (True, 5_000, 60.0, True),
        (False, 5_000, 600.0, False),
        (None, 5_000, 600.0, False),
        (True, 5_000, 59.0, False),
        (True, 999, 600.0, False),
    ],
)
def test_a_worker_whose_standbys_do_not_follow_is_named_once(
    restored: bool | None, records: int, seconds: float, is_told: bool
) -> None:
    late = told(restored=restored, lag_records=records, lag_seconds=seconds)
    findings = examine(replace(HEALTHY, told=late))
    assert [each.code for each in findings] == ["standby.behind"] * is_told
    assert all(B in each.what and "8 partitions" in each.evidence for each in findings)


LETTER = DeadLetter(
    id="accounts/1/bob", processor="accounts", topic=COMMANDS.name, partition=1, offset=7, code="message.bad",
    reason="no JSON", attempts=1, behind=0,
)  # fmt: skip
AGAIN = LETTER.model_copy(update={"attempts": 2})


def parked(*letters: DeadLetter, age_s: float = 60) -> Snapshot:
    return replace(HEALTHY, told=told(letters=list(letters)), stamped={(Place(COMMANDS.name, 1), 7): NOW - age_s})


@pytest.mark.parametrize(
    ("letters", "cure"),
    [
        ([LETTER], f"dead-letters retry accounts --url {A}"),
        ([LETTER, AGAIN], f"dead-letters retry accounts --url {A}"),
        (
            [AGAIN],
            f"dead-letters discard accounts accounts/1/bob --offset 7 --reason 'failed again: message.bad' --url {A}",
        ),
        (
            [AGAIN.model_copy(update={"code": each}) for each in ("command.failed", "command.overtaken")],
            f"dead-letters discard accounts accounts/1/bob --offset 7 "
            f"--reason 'failed again: command.overtaken' --url {A}",
        ),
    ],
)
def test_what_is_parked_is_tried_again_before_it_is_given_up(letters: Sequence[DeadLetter], cure: str) -> None:
    assert only(parked(*letters)).cure == f"python3 dev.py {cure}"


@pytest.mark.parametrize(
    ("letter", "first"),
    [
        ({"code": "row.unreadable"}, "do what its reason says after `fix:`"),
        ({"code": "message.unknown"}, "start the release that knows it, stop the older workers"),
        (
            {"code": "command.failed", "reason": "no bob; fix: reboot"},
            "mend the code that its reason names, start the ",
        ),
        ({"processor": "chapters"}, "mend the code that its reason names, start the workers again"),
    ],
)
def test_a_record_that_another_release_can_handle_is_never_given_up(letter: dict[str, Any], first: str) -> None:
    finding = only(parked(AGAIN.model_copy(update=letter)))
    assert finding.cure.startswith(first)
    assert finding.cure.endswith(f", then python3 dev.py dead-letters retry accounts --url {A}")
    assert "reboot" not in finding.cure  # a caller may have had a hand in the reason


def test_what_a_caller_chose_as_an_id_is_no_command() -> None:
    letter = AGAIN.model_copy(update={"id": "accounts/1/$(reboot)"})
    assert shlex.split(only(parked(letter)).cure)[5] == letter.id
    assert "'accounts/1/$(reboot)'" in only(parked(letter)).cure


@pytest.mark.parametrize(("behind", "age_s", "severity"), [(0, 60, "WARNING"), (1, 60, "URGENT"), (0, 1e5, "URGENT")])
def test_what_is_parked_is_urgent_when_others_wait_or_it_is_old(behind: int, age_s: float, severity: str) -> None:
    finding = only(parked(LETTER.model_copy(update={"behind": behind}), age_s=age_s))
    assert (finding.severity.name, f"for up to {age_s:,.0f} s" in finding.evidence) == (severity, True)


@pytest.mark.parametrize(("size", "severity"), [(262_144, None), (300_000, "WARNING"), (600_000, "URGENT")])
def test_a_row_that_grows_is_given_room(size: int, severity: str | None) -> None:
    rows = {"accounts-accounts-changelog": size}
    findings = examine(replace(HEALTHY, told=told(member(A), member(B, large_rows=rows))))
    assert [each.severity.name for each in findings] == ([severity] if severity else [])
    for each in findings:
        assert each.cure.endswith(f"--topic accounts-accounts-changelog --add-config max.message.bytes={8 * size}")


@pytest.mark.parametrize(
    ("topic", "first", "second", "members", "cure"),
    [
        (COMMANDS.name, 5_000, 6_000, 2, "python3 dev.py worker accounts"),
        (COMMANDS.name, 5_000, 6_000, 8, "use larger machines"),
        (COMMANDS.name, 5_000, 4_000, 2, None),
        (COMMANDS.name, 500, 900, 2, None),
        ("accounts.timers.v1", 5_000, 6_000, 2, None),
    ],
)
def test_a_service_that_falls_behind_gets_a_worker_as_long_as_that_helps(
    topic: str, first: int, second: int, members: int, cure: str | None
) -> None:
    end = 10_000
    seen = replace(
        HEALTHY,
        bounds={**HEALTHY.bounds, Place(topic, 0): Bounds(0, end, end)},
        positions={GROUP: {Place(topic, 0): end - first}},
        members={GROUP: ["one"] * members},
        later=[Unread(GROUP, Place(topic, 0), end - second, second)],
    )
    findings = examine(seen)
    assert [each.cure.startswith(cure or "-") for each in findings] == ([True] if cure else [])
