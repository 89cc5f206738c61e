"""The AsyncAPI documents say what the topologies and message types say, and are what the specification allows.

The schema is the specification's own, from @asyncapi/specs 6.11.1 (Apache-2.0), without its white space.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from services.accounts import service
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged, AccountOpened
from services.accounts.service import SERVICE
from services.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from shared.dev.asyncapi import Part, described, document_of
from shared.domain.envelope import EventEnvelope, encode
from shared.domain.ids import derived_id
from shared.domain.message import Command
from shared.engine.processors import PolicyProcessor
from shared.engine.wiring import processors_of
from shared.runtime.checkout import found_services
from shared.testing.scenario import happened
from shared.topology.policy import Policy, Send
from shared.topology.topics import Topic, Topology
from tests.accounts.domain.events import AccountCharged as ChargedInTests
from tests.engine.publishing_accounts import CHARGES, PUBLIC, PUBLISHING, WITH_PUBLIC

SCHEMA = json.loads(Path(__file__).with_name("asyncapi-3.0.0.schema.json").read_text())


@pytest.fixture(scope="module", params=[*((each,) for each in found_services()), found_services()], ids=", ".join)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    return document_of(*request.param)


def test_each_document_conforms_to_the_specification(document: dict[str, Any]) -> None:
    errors = jsonschema_rs.validator_for(SCHEMA).iter_errors(document)
    assert [f"{error.instance_path}: {error.message[:200]}" for error in errors] == []


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in _references(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert found


def test_a_service_shows_all_its_topics_with_their_settings() -> None:
    channels = document_of("accounts")["channels"]
    assert channels.keys() == {topic.name for topic in TOPOLOGY.all_topics()}
    assert channels[COMMANDS.name]["messages"].keys() == {command.TYPE for command in DECIDER.commands}
    assert channels[EVENTS.name]["messages"].keys() == {event.TYPE for event in DECIDER.events}
    operations = {
        "accounts receive accounts.commands.v1",
        "accounts send accounts.events.v1",
        "accounts send accounts.dead.v1",
    }
    assert document_of("accounts")["operations"].keys() == operations
    kafka = channels[EVENTS.name]["bindings"]["kafka"]
    assert (kafka["partitions"], kafka["topicConfiguration"]["cleanup.policy"]) == (TOPOLOGY.partitions, ["delete"])


def test_a_real_record_is_valid_and_another_schema_version_is_not() -> None:
    document = document_of("accounts")
    payload = document["channels"][EVENTS.name]["messages"][AccountCharged.TYPE]["payload"]
    validator = jsonschema_rs.validator_for({**payload, "components": document["components"]})
    record = json.loads(
        DECIDER.event_codec.write(
            AccountCharged(amount_cents=5),
            event_id=derived_id("e"),
            aggregate_id="ann",
            sequence=1,
            occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
            correlation_id="c",
        )
    )
    assert validator.is_valid(record)
    assert not validator.is_valid(record | {"schema_version": AccountCharged.VERSION + 1})
    assert not validator.is_valid(record | {"data": {}})


def test_a_public_event_is_described_as_it_is_published_headers_included() -> None:
    document = described(Part(WITH_PUBLIC, processors_of(PUBLISHING)))
    (message,) = document["channels"][PUBLIC.name]["messages"].values()
    published = CHARGES.published(encode(happened(ChargedInTests(amount_cents=5))))
    assert published is not None
    headers = {name: value.decode() for name, value in published.headers}
    of_body = jsonschema_rs.validator_for({**message["payload"], "components": document["components"]})
    of_headers = jsonschema_rs.validator_for(message["headers"])
    assert of_body.is_valid(json.loads(published.body))
    assert of_headers.is_valid(headers)
    assert not of_headers.is_valid(headers | {"ce_type": "account.charged.v2"})
    assert "accounts send accounts.public.v1" in document["operations"]


def test_one_document_has_the_owners_words_for_a_message_of_several_services() -> None:
    """Others declare the fields that they use."""
    other = Topology("other", ())
    sends = Policy(lambda _: (), source=EVENTS, events=[AccountOpened], commands={COMMANDS: [OtherOpenAccount]})
    parts = Part(TOPOLOGY, processors_of(SERVICE)), Part(other, [PolicyProcessor(sends)])
    for some in (parts, parts[::-1]):
        document = described(*some)
        assert document["channels"][COMMANDS.name]["messages"].keys() == {each.TYPE for each in DECIDER.commands}
        assert "other send accounts.commands.v1" in document["operations"]
    assert described(parts[1])["channels"][COMMANDS.name]["messages"].keys() == {OtherOpenAccount.TYPE}


class OtherOpenAccount(Command):
    """Named in Python as one of accounts' own commands."""

    TYPE = "other.open"


def test_a_topic_that_only_a_sink_reads_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console draws its arrow from this."""
    other = Topic("other.events.v1")
    monkeypatch.setattr(service, "SERVICE", replace(SERVICE, reads=[other]))
    document = document_of("accounts")
    assert "accounts receive other.events.v1" in document["operations"]
    assert document["channels"][other.name]["description"] == "Another service's; its document describes it."


OtherOpenAccount.__name__ = "OpenAccount"


def test_commands_of_two_services_may_have_the_same_class_name() -> None:
    def ask(_event: EventEnvelope[Any]) -> Sequence[Send]:
        return ()

    other = Topic("other.commands.v1")
    policy = Policy(ask, source=EVENTS, events=[AccountOpened], commands={other: [OtherOpenAccount]})
    channels = described(Part(TOPOLOGY, processors_of(replace(SERVICE, policies=[policy]))))["channels"]
    others = channels[other.name]["messages"]["other.open"]
    own = channels[COMMANDS.name]["messages"]["account.open"]
    assert others["title"] == own["title"] == "OpenAccount"
    assert others["payload"] != own["payload"]


def _references(found: Any) -> list[str]:
    if isinstance(found, dict):
        inner = [reference for value in found.values() for reference in _references(value)]
        return inner + ([found["$ref"]] if isinstance(found.get("$ref"), str) else [])
    return [reference for value in found for reference in _references(value)] if isinstance(found, list) else []
