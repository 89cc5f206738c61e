"""A worker does not start before the topics of other services that it writes to exist."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from shared.dev.stack import Stack
from shared.engine.processors import AggregateProcessor, RekeyProcessor
from shared.group.app import WorkerApp
from shared.operations.provision import TopicsMissing
from shared.topology.rekey import Rekey
from shared.topology.topics import Topic
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY

pytestmark = pytest.mark.broker


def test_a_worker_that_would_write_to_a_missing_topic_does_not_start(stack: Stack, tmp_path: Path) -> None:
    sends = RekeyProcessor(
        Rekey({Topic("archive.commands.v1"): lambda _: ()}, source=COMMANDS, events=(AccountOpened,))
    )
    processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS), sends]
    settings = stack.settings.model_copy(update={"data_dir": tmp_path})
    worker = WorkerApp(TOPOLOGY, processors, settings, cast(Any, None))
    with pytest.raises(TopicsMissing, match=r"this principal: archive\.commands\.v1; fix: run `provision`"):
        asyncio.run(worker.on_first_start())
