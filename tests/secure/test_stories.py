"""A story as far as a principal may read: what is hidden from it is named, and what it may see is shown."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from shared.engine.batch import Batch
from shared.kafka.access import signed_in
from shared.kafka.reader import ReadRecord
from shared.operations.acls import create_principals, rules_of
from shared.operations.provision import provision, set_config
from shared.runtime.settings import Settings
from shared.stories.search import NoStory, find_story
from shared.stories.story import Story
from shared.topology.topics import Topic, Topology
from tests.secure.conftest import Secured, password_of

pytestmark = pytest.mark.broker

GIVERS = Topology("givers", (Topic("givers.commands.v1"), Topic("givers.events.v1")))
TAKERS = Topology("takers", (Topic("takers.commands.v1"), Topic("takers.timers.v1")))
SERVICES = (GIVERS, TAKERS)
SENT = "takers.commands.v1", "givers.commands.v1", "givers.events.v1", "takers.dead.v1"


@pytest.fixture(scope="module")
def services(secured: Secured) -> None:
    """Two that nobody runs. The second may write the first one's commands, and read its events."""
    provision(SERVICES, Settings(bootstrap=secured.operators))
    create_principals({"takers": password_of("takers")}, secured.operators)
    admin = AdminClient({"bootstrap.servers": secured.operators})  # a variable, else its answers never arrive
    for answer in admin.create_acls([*rules_of(TAKERS, GIVERS.topics)]).values():
        answer.result()


@pytest.fixture(scope="module")
def written(secured: Secured, services: None) -> None:
    """A command of takers, one that it led to in givers, what came of that, and a dead letter of the first."""
    about: dict[str, Any] = {"correlation_id": "a story", "schema_version": 1, "aggregate_id": "a", "data": {}}
    first = {"command_id": "c1", "type": "taking.place"} | about
    batch = Batch(TAKERS.dead_letters.name)
    batch.bury(ReadRecord(SENT[0], 0, 0, b"a", json.dumps(first).encode(), 0), "message.bad", "it is empty")
    bodies = (
        first,
        {"command_id": "c2", "type": "gift.charge", "causation_id": "c1"} | about,
        {"event_id": "e2", "type": "gift.charged", "causation_id": "c2"} | about,
        json.loads(batch.records[0].value or b""),
    )
    producer = Producer({"bootstrap.servers": secured.operators})
    for topic, body in zip(SENT, bodies, strict=True):
        producer.produce(topic, json.dumps(body).encode(), b"a", partition=0)
    assert producer.flush(30) == 0


def story(bootstrap: str, text: str) -> Story:
    return find_story(bootstrap, SERVICES, text, now_ms=time.time_ns() // 1_000_000)


def types(found: Story) -> list[tuple[int, str]]:
    return [(each.depth, each.type) for each in found.steps]


@pytest.mark.usefixtures("written")
def test_an_operator_sees_all_of_it_and_why_a_record_was_parked(secured: Secured) -> None:
    for text in ("a story", "c2", "givers.events.v1/0/0"):
        found = story(secured.operators, text)
        assert types(found) == [(0, "taking.place"), (1, "gift.charge"), (2, "gift.charged")]
        assert found.whole
        assert [each.code for each in found.steps[0].failures] == ["message.bad"]
    with pytest.raises(NoStory):
        story(secured.operators, "c3")


@pytest.mark.usefixtures("written")
def test_a_service_is_told_which_topics_it_may_not_read(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"bootstrap.servers": secured.bootstrap} | signed_in(secured.principal("takers"))
    for module in ("search", "brokers"):
        monkeypatch.setattr(f"shared.kafka.{module}.client_config", lambda _: config)
    found = story(secured.bootstrap, "a story")
    assert {*types(found)} == {(0, "taking.place"), (0, "gift.charged")}
    assert not found.whole
    assert "givers.commands.v1" in found.unread
    assert not {"takers.commands.v1", "takers.dead.v1", "givers.events.v1"} & {*found.unread}


YEAR_MS = 365 * 24 * 3_600_000
THEN_MS = 46 * YEAR_MS
LATER = 2_000


@pytest.fixture(scope="module")
def history(secured: Secured, services: None) -> None:
    """A command of years ago, whose event came half a minute later, and a second one of a timer an hour after; and what
    others wrote in the years since.
    """
    admin = AdminClient({"bootstrap.servers": secured.operators})
    topics = ("givers.commands.v1", "givers.events.v1", "takers.timers.v1", "takers.commands.v1")
    for topic in topics:
        set_config(admin, topic, "message.timestamp.type", "CreateTime")
    about = {"correlation_id": "old", "causation_id": "o1"}
    story = [
        ("givers.commands.v1", 0, {"command_id": "o1", "type": "gift.reserve", "correlation_id": "old"}),
        ("givers.events.v1", 30_000, {"event_id": "o2", "type": "gift.reserved"} | about),
        ("takers.timers.v1", 30_010, {"command_id": "o3", "type": "taking.check"} | about | {"causation_id": "o2"}),
        (
            "takers.commands.v1",
            3_630_010,
            {"command_id": "o3", "type": "taking.check"} | about | {"causation_id": "o2"},
        ),
    ]
    producer = Producer({"bootstrap.servers": secured.operators})
    for topic, after_ms, body in story:
        producer.produce(topic, json.dumps(body).encode(), b"a", partition=1, timestamp=THEN_MS + after_ms)
    for number in range(LATER):
        other = {"command_id": str(number), "type": "gift.ship", "correlation_id": str(number)}
        at_ms = THEN_MS + YEAR_MS + number
        producer.produce("givers.commands.v1", json.dumps(other).encode(), b"a", partition=1, timestamp=at_ms)
    assert producer.flush(30) == 0


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("text", ["old", "o2", "givers.events.v1/1/0", "takers.commands.v1/1@0"])
def test_a_story_of_years_ago_is_found_whole(secured: Secured, text: str) -> None:
    found = story(secured.operators, text)
    assert types(found) == [(0, "gift.reserve"), (1, "gift.reserved"), (2, "taking.check"), (3, "taking.check")]
    assert [each.waited_ms for each in found.steps] == [None, 30_000, 10, 3_600_000]
    assert found.whole


@pytest.mark.usefixtures("history")
def test_of_what_was_written_since_nothing_is_read_for_a_place(secured: Secured) -> None:
    by_place = story(secured.operators, "givers.events.v1/1/0")
    assert by_place.records_read < 100
    assert by_place.read_until is not None
