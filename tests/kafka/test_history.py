"""Look-ups wait for what passes by itself, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from shared.kafka.history import History, HistoryUnavailable


def answering(monkeypatch: pytest.MonkeyPatch, *codes: int) -> History:
    """Fails with each of `codes`, then answers that a group has nobody."""
    left: Iterator[int] = iter(codes)

    def members(_: History, _group: str) -> tuple[str, ...]:
        for code in left:
            raise KafkaException(KafkaError(code))
        return ()

    monkeypatch.setattr(History, "_members", members)
    return History("127.0.0.1:1")


def test_a_broker_that_was_just_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    history = answering(monkeypatch, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.UNKNOWN_LEADER_EPOCH)
    assert history.members("accounts") == ()


def test_a_refusal_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    history = answering(monkeypatch, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(HistoryUnavailable, match="GROUP_AUTHORIZATION_FAILED"):
        history.members("accounts")
