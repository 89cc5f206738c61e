"""A broker that authenticates its clients: services work as their own principals, and nothing else is let in."""

from __future__ import annotations

import pytest

from shared.dev.secured import make_secrets
from shared.runtime.checkout import found_services
from tests.compose.conftest import Projects
from tests.compose.project import ROOT, Project

NAME = "onefold-test-secure"
PURCHASES = 100
WRITE_A_FACT = """\
from confluent_kafka import Producer
from shared.kafka.access import client_config
producer = Producer(client_config('broker:9094'))
producer.produce('accounts.events.v1', b'{}', on_delivery=lambda error, _: print(error.name()))
producer.flush(30)
"""
CONNECT = "import socket; socket.create_connection(('broker', 9092))"


@pytest.fixture(scope="module")
def system(project: Projects) -> Project:
    make_secrets(ROOT / ".onefold" / "secrets", found_services())
    made = project(NAME, "docker-compose.yml", "compose.secure.yml")
    made.up()
    return made


def test_every_purchase_is_confirmed_by_services_that_had_to_sign_in(system: Project) -> None:
    assert {each.service for each in system.containers() if each.state == "healthy"} == {"broker", *found_services()}
    assert system.demo(PURCHASES).startswith("verdict: ok")


def test_a_service_cannot_write_another_services_events(system: Project) -> None:
    said = system.in_container("sales", f'ONEFOLD_HTTP_HOST=127.0.0.1 python -c "{WRITE_A_FACT}" 2>&1')
    assert "TOPIC_AUTHORIZATION_FAILED" in said.splitlines()


def test_a_principal_needs_its_own_password(system: Project) -> None:
    said = system.in_container("accounts", "ONEFOLD_KAFKA_USER=orders entrypoint topics 2>&1")
    assert "ONEFOLD_KAFKA_PASSWORD is wrong" in said


def test_services_cannot_reach_the_brokers_plaintext_listener(system: Project) -> None:
    assert "ConnectionRefusedError" in system.in_container("accounts", f'python -c "{CONNECT}" 2>&1')
