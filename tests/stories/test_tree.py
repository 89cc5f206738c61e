"""A story as a tree, without a broker: each record below the one that it follows from."""

from __future__ import annotations

import json
from collections.abc import Iterable

from shared.dev.story import drawn
from shared.engine.batch import Batch
from shared.kafka.reader import ReadRecord
from shared.stories.story import Step, Story, as_steps, letter, pending, told, unexplained


def record(topic: str, offset: int, at: int = 0, key: str = "a", **body: object) -> ReadRecord:
    """at: ms since the epoch."""
    return ReadRecord(topic, 0, offset, key.encode(), json.dumps(body).encode(), at)


def command(topic: str, offset: int, id_: str, cause: str | None = None, at: int = 0) -> ReadRecord:
    return record(
        topic, offset, at, type=f"do.{id_}", command_id=id_, correlation_id="story", causation_id=cause, data={}
    )


def event(topic: str, offset: int, id_: str, cause: str | None = None, at: int = 0) -> ReadRecord:
    return record(topic, offset, at, type=f"was.{id_}", event_id=id_, correlation_id="story", causation_id=cause)


def buried(parked: ReadRecord, offset: int = 0, at: int = 1_000) -> ReadRecord:
    """The dead letter of `parked`, as an engine writes it."""
    batch = Batch("a.dead.v1")
    batch.bury(parked, "bad", "no key")
    (dead,) = batch.records
    return ReadRecord(dead.topic, 0, offset, dead.key, dead.value, at)


def steps(*records: ReadRecord) -> list[Step]:
    return as_steps(filter(None, map(told, records)))


def tree(found: Iterable[Step]) -> list[tuple[int, str, str]]:
    return [(each.depth, each.id, each.topic) for each in found]


SHOP = (
    event("b.events.v1", 0, "e2", "c2", at=30),
    command("a.commands.v1", 7, "t1", "e1", at=5_010),
    command("b.commands.v1", 4, "c2", "e1", at=20),
    event("views.by-day.v1", 3, "e1", "c1", at=15),
    command("a.timers.v1", 1, "t1", "e1", at=10),
    command("a.commands.v1", 2, "c1", at=1),
    event("a.events.v1", 9, "e1", "c1", at=10),
    event("a.events.v1", 10, "e3", "t1", at=5_030),
)


def test_each_record_is_below_its_cause_and_copies_below_their_original() -> None:
    assert tree(steps(*SHOP)) == [
        (0, "c1", "a.commands.v1"),
        (1, "e1", "a.events.v1"),
        (2, "t1", "a.timers.v1"),
        (3, "t1", "a.commands.v1"),
        (4, "e3", "a.events.v1"),
        (2, "e1", "views.by-day.v1"),
        (2, "c2", "b.commands.v1"),
        (3, "e2", "b.events.v1"),
    ]


def test_a_step_knows_its_cause_and_how_long_it_waited() -> None:
    found = steps(*SHOP)
    assert [each.waited_ms for each in found] == [None, 9, 0, 5_000, 20, 5, 10, 10]
    assert [each.cause for each in found] == [None, 0, 1, 2, 3, 1, 1, 6]


def test_the_order_in_which_records_are_found_changes_nothing() -> None:
    assert steps(*reversed(SHOP)) == steps(*SHOP)


def test_a_command_that_was_sent_again_is_a_copy_and_its_events_follow_from_the_first() -> None:
    found = steps(
        command("a.commands.v1", 2, "c1", at=1),
        command("a.commands.v1", 3, "c1", at=2),
        event("a.events.v1", 1, "e1", "c1", at=3),
    )
    assert [(each.depth, each.offset, each.cause) for each in found] == [(0, 2, None), (1, 3, 0), (1, 1, 0)]


def test_what_is_missing_is_told() -> None:
    found = [each for each in map(told, SHOP[:3]) if each]
    assert unexplained(found) == {"e1"}
    assert pending([each for each in map(told, SHOP) if each]) == set()
    assert pending([each for each in map(told, SHOP[2:]) if each]) == {"t1"}


def test_ids_that_go_round_in_a_circle_end() -> None:
    assert steps(event("a.events.v1", 0, "e1", "e2"), event("a.events.v1", 1, "e2", "e1")) == []
    assert tree(steps(event("a.events.v1", 0, "e1", "e1"))) == [(0, "e1", "a.events.v1")]


def test_what_is_no_message_is_passed_over() -> None:
    nothing = (None, b"", b"[]", b"\xff", b'{"type": "x"}', b'{"type": "x", "correlation_id": "story"}')
    for value in nothing:
        found = ReadRecord("a.events.v1", 0, 0, None, value, 0)
        assert told(found) is None
        assert letter(found) is None


def test_a_parked_record_says_why() -> None:
    dead = letter(buried(command("a.commands.v1", 2, "c1")))
    assert dead is not None
    (found,) = as_steps(filter(None, [told(command("a.commands.v1", 2, "c1"))]), [(dead, 1_000)])
    assert [each.model_dump(exclude={"at"}) for each in found.failures] == [{"code": "bad"}]


def story(*records: ReadRecord) -> Story:
    found = tuple(steps(*records))
    return Story(
        correlation_id="story",
        whole=True,
        read_until=None,
        unread=(),
        circular=len(records) - len(found),
        records_read=8,
        seconds=0.01,
        steps=found,
    )


def test_it_is_drawn_as_a_tree() -> None:
    lines = list(drawn(story(*SHOP), colour=False))
    assert [line.split("  +")[0].split("  ●")[0].rstrip() for line in lines[3:11]] == [
        "do.c1  a",
        "└─ was.e1  a",
        "   ├─ do.t1  a",
        "   │  └─ do.t1  a",
        "   │     └─ was.e3  a",
        "   ├─ was.e1  a",
        "   └─ do.c2  a",
        "      └─ was.e2  a",
    ]
    assert "+5,000 ms" in lines[6]
    assert lines[6].endswith("a.commands.v1/0@7")


def test_as_many_effects_of_one_cause_as_there_can_be_are_drawn() -> None:
    """Within seconds: it was half a minute when each looked for its cause among all the others."""
    many = story(command("a.commands.v1", 0, "c1"), *(event("a.events.v1", at, f"e{at}", "c1") for at in range(20_000)))
    assert {each.cause for each in many.steps[1:]} == {0}
    lines = list(drawn(many, colour=False))
    assert [line[:2] for line in lines[4:20_003]] == ["├─"] * 19_999
    assert lines[20_003].startswith("└─")


def test_why_a_story_is_not_whole_is_told() -> None:
    circle = event("a.events.v1", 0, "e1", "e2"), event("a.events.v1", 1, "e2", "e1")
    for others in ((), (command("a.commands.v1", 0, "c1"),)):
        _, line, *_ = drawn(story(*circle, *others), colour=False)
        assert line.startswith("! 2 records are not shown: their causes go round in a circle")
    timer = story(command("a.commands.v1", 0, "c1"), command("a.timers.v1", 3, "t1", "c1"))
    assert "a timer is open: a.timers.v1/0@3" in "\n".join(drawn(timer, colour=False))
    assert not any("timer is open" in line for line in drawn(story(*SHOP), colour=False))
    cut = story(*SHOP).model_copy(update={"whole": False})
    assert "more than 20,000 records" in "\n".join(drawn(cut, colour=False))


def test_what_strangers_wrote_does_not_steer_the_terminal() -> None:
    evil = "\x1b[2Jgone\r\n\u202e"
    found = story(
        record("a.commands.v1", 0, key=evil, type=evil, command_id="c1", correlation_id=evil, causation_id=evil)
    )
    lines = list(drawn(found.model_copy(update={"correlation_id": evil}), colour=False))
    assert all(line.isprintable() for line in lines)
    assert lines[0] == r"story \x1b[2Jgone\r\n\u202e"
