"""Spark folds what workers of the tests' own accounts did to the rows that they hold, whatever services there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("pyspark")

from pipelines import consistency
from pipelines.catalog import table_in
from pipelines.rebuild import Rebuild
from pipelines.session import spark_session
from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.operations.provision import provision
from tests.accounts.topology import ACCOUNTS, TOPOLOGY
from tests.conftest import accounts_stack

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]
if Path(__file__).parents[1].joinpath("pipelines", "test_proof.py").exists():
    pytestmark.append(pytest.mark.long)  # in short, that proof of the same


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Stack]:
    """One worker, with rows that no other test has broken."""
    with accounts_stack(tmp_path, workers=1) as stack:
        yield stack


def held(brokers: Brokers, changelog: str) -> dict[bytes | None, bytes | None]:
    """The last row of each key."""
    return {key: row for _, key, row in read_all(brokers, changelog)}


def test_the_rows_of_workers_are_the_fold_of_their_events_and_a_rebuild_has_them_too(
    alone: Stack, tmp_path: Path
) -> None:
    (url,) = alone.urls("accounts")
    with httpx.Client(base_url=url, timeout=60) as client:
        for number in range(20):
            for path, amount in (("", None), ("/charges", 5 + number), ("/payments", number)):
                body = {} if amount is None else {"amount_cents": amount}
                client.post(f"/accounts/a{number}{path}", json=body)
    table, brokers = table_in("tests.accounts", "accounts"), Brokers(alone.bootstrap)
    with spark_session("recounted", cores=1) as spark:
        verdict = consistency.check(spark, brokers, table, url=url)
        assert str(verdict).startswith("20 of 20 accounts agree (20 also over HTTP, ")
        for worker in alone.workers:
            worker.stop()
        build = Rebuild(spark, brokers, [table], 2, tmp_path / "work")
        provision([build.topology], alone.settings)
        build.run(lambda *_: None)
    assert held(brokers, build.topology.changelog(ACCOUNTS).name) == held(brokers, TOPOLOGY.changelog(ACCOUNTS).name)
