"""Look-ups are retried for errors that pass by themselves, and for no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from shared.kafka.brokers import Brokers, BrokersUnavailable


def answering(monkeypatch: pytest.MonkeyPatch, *codes: int) -> Brokers:
    """Brokers that fail with each of `codes`, then answer that a group has no members."""
    left: Iterator[int] = iter(codes)

    def members(_: Brokers, _group: str) -> tuple[str, ...]:
        for code in left:
            raise KafkaException(KafkaError(code))
        return ()

    monkeypatch.setattr(Brokers, "_members", members)
    return Brokers("127.0.0.1:1")


def test_a_broker_that_was_just_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = answering(monkeypatch, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.UNKNOWN_LEADER_EPOCH)
    assert brokers.members("accounts") == ()


def test_a_refusal_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = answering(monkeypatch, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokersUnavailable, match="GROUP_AUTHORIZATION_FAILED"):
        brokers.members("accounts")


def test_where_no_broker_answers_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = answering(monkeypatch, KafkaError._TRANSPORT)
    with pytest.raises(BrokersUnavailable, match="fix: start the brokers, or name others in ONEFOLD_BOOTSTRAP"):
        brokers.members("accounts")
