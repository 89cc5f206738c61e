"""Copies that are missing on three brokers are found and made."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from shared.dev.embedded import EmbeddedKafka
from shared.doctor.finding import Finding
from shared.kafka.brokers import BrokersUnavailable
from shared.operations.provision import ProvisionError, provision
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology
from tests.doctor.patient import MENDED_S, Patient
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.long]

VOUCHERS = Topology("vouchers", (Topic("vouchers.events.v1"),), partitions=3)


def test_topics_with_one_copy_get_three_and_a_lost_broker_is_named(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", tmp_path / "logs", brokers=3) as kafka:
        provision([VOUCHERS], Settings(bootstrap=kafka.bootstrap))
        patient = Patient(Settings(bootstrap=kafka.bootstrap, replication=3, min_isr=2), [VOUCHERS])
        topics = len(VOUCHERS.all_topics())
        ill = eventually(patient.findings, lambda found: len(found) == 2 * topics)
        assert {each.code for each in ill} == {"topic.copies", "topic.setting"}
        for each in ill[:topics]:
            assert each.code == "topic.copies"
            patient.treat(each)
            patient.await_end(each)
        for each in eventually(lambda: patient.findings("topic.setting"), _all_are_commands, MENDED_S):
            patient.treat(each)
            patient.await_end(each)
        patient.await_health()
        kafka.kill(3)
        (lost,) = eventually(lambda: _findings(patient))
        assert (lost.code, lost.cure) == ("broker.behind", "start broker 3")
        kafka.restart(3)
        patient.await_health()


def _all_are_commands(found: list[Finding]) -> bool:
    """And no advice to wait for copies."""
    return all(each.cure.startswith("python3 dev.py kafka configs") for each in found)


def _findings(patient: Patient) -> list[Finding]:
    """None while the brokers are electing leaders, and nobody can look."""
    with suppress(ProvisionError, BrokersUnavailable):
        return patient.findings()
    return []
