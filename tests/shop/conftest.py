"""One broker and one worker per service, two of orders, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.dev.stack import Stack
from tests.conftest import WORKER_SETTINGS
from tests.shop.market import Market

WORKERS = {"accounts": 1, "inventory": 1, "orders": 2, "pickups": 1, "sales": 1}
ORDERS_DEADLINE_S = 5.0  # three attempts: an order without answers ends after 15 s


@pytest.fixture(scope="package")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ORDERS_DEADLINE_S", str(ORDERS_DEADLINE_S))
        root = tmp_path_factory.mktemp("shop")
        with Stack(root, WORKERS, settings=WORKER_SETTINGS) as stack, Market(stack) as market:
            yield market
