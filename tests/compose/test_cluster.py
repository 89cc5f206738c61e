"""Three brokers: each is lost in turn, and every order is still confirmed."""

from __future__ import annotations

import subprocess

import pytest

from shared.runtime.checkout import found_services
from tests.compose.conftest import Projects
from tests.compose.project import Project, eventually

NAME = "onefold-test-cluster"
MEMORY_BYTES = 4 * 10**9
PURCHASES = 100
BROKERS = ("broker", "broker-2", "broker-3")


@pytest.fixture(scope="module")
def system(project: Projects) -> Project:
    made = project(NAME, "docker-compose.yml", "compose.cluster.yml")
    made.up()
    return made


def test_up_ends_when_three_brokers_and_every_worker_are_healthy(system: Project) -> None:
    states = {each.service: each.state for each in system.containers()}
    assert states == dict.fromkeys([*BROKERS, *found_services()], "healthy") | {"topics": "exited"}


def test_the_memory_limits_add_up_to_at_most_four_gigabytes(system: Project) -> None:
    limits = {name: int(each["mem_limit"]) for name, each in system.config()["services"].items()}
    assert sum(limits.values()) <= MEMORY_BYTES


@pytest.mark.parametrize(("place", "lost"), list(enumerate(BROKERS, 1)))
def test_without_one_broker_every_order_is_still_confirmed(system: Project, place: int, lost: str) -> None:
    (broker,) = system.containers(lost)
    subprocess.run(["docker", "kill", broker.id], check=True, capture_output=True)
    assert system.demo(place * PURCHASES).startswith("verdict: ok")
    subprocess.run(["docker", "start", broker.id], check=True, capture_output=True)
    eventually(lambda: system.containers(lost)[0], lambda now: now.state == "healthy")
