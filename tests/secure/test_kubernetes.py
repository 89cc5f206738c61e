"""What is generated for Kubernetes, on a node that is played: pods start, are replaced under traffic and stop.

Their broker authenticates clients, as in prod. But that it is one, and that callers need no token, all is as generated.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from shared.dev.kubernetes import OPERATOR, write
from shared.operations.provision import load_topologies
from shared.runtime.checkout import found_services
from tests.faults.load import HttpLoad
from tests.pods import Pod, objects_in, pods_of
from tests.secure.conftest import Secured, allow_everything, password_of
from tests.waiting import eventually

SERVICE = "accounts"

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 as loopback"),
    pytest.mark.skipif(SERVICE not in found_services(), reason="a generated pod runs a service of this checkout"),
]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write(tmp_path / "base", load_topologies())
    return tmp_path / "base"


@pytest.fixture
def pods(secured: Secured, base: Path, tmp_path: Path) -> Iterator[Sequence[Pod]]:
    stateful = objects_in(base, "StatefulSet")[SERVICE]
    of_all = {"settings": settings(secured), "secrets": secrets(secured, SERVICE, tmp_path), "folder": tmp_path}
    made = pods_of(stateful, stateful["spec"]["replicas"], **of_all)
    yield made
    for pod in made:
        pod.kill()


@pytest.mark.long  # in short, tests/unit/dev/test_kubernetes, of what pods are given
def test_pods_are_replaced_one_by_one_and_what_was_answered_took_effect_once(pods: Sequence[Pod]) -> None:
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.await_ready()
    serving = [*pods]  # as the Service knows them
    load = HttpLoad(lambda: [pod.url for pod in serving], seed=29)
    load.start()
    try:
        for pod in reversed(pods):
            more_answers_of(load)
            serving.remove(pod)
            assert pod.stop(), pod.log.read_text()[-3000:]
            more_answers_of(load)
            pod.start()
            pod.await_ready()
            serving.append(pod)
        more_answers_of(load)
    finally:
        load.end()
    assert [*load.unanswered, *load.strange, *load.stale] == []
    assert load.fresh > 0
    taken = [(answer.name, answer.sequence) for answer in load.answers if answer.status == 201]
    assert len({*taken}) == len(taken)
    found = {name: httpx.get(f"{pods[0].url}/accounts/{name}").json()["sequence"] for name, _ in taken}
    assert found == Counter(name for name, _ in taken)
    assert [pod.stop() for pod in pods] == [True] * len(pods)


def test_the_job_finds_all_topics_as_declared(secured: Secured, base: Path, tmp_path: Path) -> None:
    allow_everything(OPERATOR, secured.operators)
    spec = objects_in(base, "Job")["provision"]["spec"]["template"]["spec"]
    job = Pod("provision-x", spec, settings(secured), secrets(secured, OPERATOR, tmp_path), tmp_path / "job")
    job.start()
    assert (job.await_done(), job.log.read_text().splitlines()[-1]) == (0, "all topics are as declared")


def settings(secured: Secured) -> dict[str, str]:
    return {"ONEFOLD_ENV": "dev", "ONEFOLD_BOOTSTRAP": secured.bootstrap, "ONEFOLD_LOG_FORMAT": "json"}


def secrets(secured: Secured, name: str, folder: Path) -> dict[str, str]:
    return {
        "kafka-password": password_of(name),
        "kafka-ca.pem": secured.ca.read_text(),
        "peer-secret": "known to the pods of a service only",
        "person-keys": f"sqlite:///{folder / 'persons.db'}",
    }


def more_answers_of(load: HttpLoad) -> None:
    before = len(load.answers)
    eventually(lambda: len(load.answers), lambda count: count > before + 20)
