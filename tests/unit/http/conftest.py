"""accounts over HTTP without a broker or a port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from shared.engine.processors import AggregateProcessor
from shared.http.api import create_api
from shared.testing.node import MemoryNode
from tests.accounts.api import routes
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.unit.http.services import client_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode(TOPOLOGY, [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)])


@pytest.fixture
async def http(node: MemoryNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_api(node, routes)) as client:
        yield client
