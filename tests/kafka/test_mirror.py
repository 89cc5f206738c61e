"""A mirror knows a cluster by its id, not by its addresses."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from shared.dev import cli
from shared.dev.stages import StageFailed
from shared.kafka.mirror import Mirror


@pytest.mark.broker
def test_a_cluster_under_another_address_is_not_mirrored_onto_itself(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mirror, "start", lambda _: pytest.fail("MirrorMaker was started"))
    target = bootstrap.replace("127.0.0.1", "localhost")
    error = CliRunner().invoke(cli.cli, ["mirror", target], env={"ONEFOLD_BOOTSTRAP": bootstrap}).exception
    assert isinstance(error, StageFailed)
    assert f"{target} is where the records come from" in error.problem
