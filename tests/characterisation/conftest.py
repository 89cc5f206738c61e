"""One broker for all tests of this folder."""

from collections.abc import Iterator

import pytest

from shared.dev.embedded import EmbeddedKafka


@pytest.fixture(scope="package")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(root / "data", root / "logs") as kafka:
        yield kafka.bootstrap
