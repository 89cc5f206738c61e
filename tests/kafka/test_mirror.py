"""A mirror knows a cluster by its topics' ids, not by its addresses, nor by its own id."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from shared.dev import cli, here
from shared.dev.embedded import EmbeddedKafka
from shared.dev.stages import StageFailed
from shared.operations.mirror import Mirror
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

pytestmark = pytest.mark.broker

TOPOLOGIES = [Topology("mirrored", (Topic("mirrored.events.v1"),), partitions=2)]


class Started(Exception):
    """MirrorMaker would run."""


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: Mirror) -> NoReturn:
        raise Started

    monkeypatch.setattr(Mirror, "start", start)
    monkeypatch.setattr(here, "load_topologies", lambda: TOPOLOGIES)


def refusal(source: str, target: str) -> BaseException | None:
    return CliRunner().invoke(cli.cli, ["mirror", target], env={"ONEFOLD_BOOTSTRAP": source}).exception


def test_a_cluster_under_another_address_is_not_mirrored_onto_itself(bootstrap: str) -> None:
    provision(TOPOLOGIES, Settings(bootstrap=bootstrap))
    target = bootstrap.replace("127.0.0.1", "localhost")
    error = refusal(bootstrap, target)
    assert isinstance(error, StageFailed)
    assert f"{target} is where the records come from" in error.problem


def test_two_clusters_of_the_same_id_are_told_apart(bootstrap: str, tmp_path: Path) -> None:
    """Containers of one image have it, unless each is given its own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    same_id = admin.describe_cluster().result().cluster_id

    class Twin(EmbeddedKafka):
        def _identity(self) -> tuple[str, list[int]]:
            return same_id, super()._identity()[1]

    with Twin(tmp_path / "data", tmp_path / "logs") as second:
        nothing_there = refusal(second.bootstrap, bootstrap)
        assert isinstance(nothing_there, StageFailed)
        assert "has none of the topics that are mirrored" in nothing_there.problem
        provision(TOPOLOGIES, Settings(bootstrap=bootstrap))
        assert isinstance(refusal(bootstrap, second.bootstrap), Started)
        provision(TOPOLOGIES, Settings(bootstrap=second.bootstrap))
        assert isinstance(refusal(bootstrap, second.bootstrap), Started)
