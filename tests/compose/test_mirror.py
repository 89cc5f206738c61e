"""The second cluster gets every record committed on the first exactly once, even when the mirror is killed."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from shared.operations.mirror import mirrored_topics
from shared.operations.provision import load_topologies
from tests.compose.conftest import Projects, ports
from tests.compose.project import Project, eventually
from tests.shop.market import read

NAME = "onefold-test-mirror"
PURCHASES = 100


@pytest.fixture(scope="module")
def system(project: Projects) -> Project:
    made = project(NAME, "docker-compose.yml", COMPOSE_PROFILES="mirror")
    made.up()
    return made


def records(port: str) -> Counter[tuple[str, bytes, bytes]]:
    """How often each (topic, key, value) is committed on the cluster at this port."""
    bootstrap = f"127.0.0.1:{ports()[port]}"
    topics = mirrored_topics(load_topologies())
    return Counter((topic, said.key, said.value) for topic in topics for said in read(bootstrap, topic))


def differences() -> dict[tuple[str, bytes, bytes], int]:
    """Records that one cluster has more often than the other; the services may still be at work."""
    here, there = records("BROKER_PORT"), records("SECOND_PORT")
    return (here - there) + (there - here)


def test_the_second_cluster_has_every_committed_record_once(system: Project) -> None:
    assert system.demo(PURCHASES).startswith("verdict: ok")
    eventually(differences, lambda found: not found)
    topics = {topic for topic, _, _ in records("SECOND_PORT")}
    assert topics >= {"orders.commands.v1", "orders.events.v1", "accounts.events.v1"}


def test_a_killed_mirror_resumes_without_gaps_or_duplicates(system: Project) -> None:
    (mirror,) = system.containers("mirror")
    subprocess.run(["docker", "exec", mirror.id, "sh", "-c", "kill -s KILL -- -1"], check=False, capture_output=True)
    assert system.demo(2 * PURCHASES).startswith("verdict: ok")
    eventually(differences, lambda found: not found)
    assert system.containers("mirror")[0].facts["RestartCount"] == 1
