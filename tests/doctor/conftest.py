"""Two workers of the tests' own accounts, with a broker that other folders' tests do not share: here it is made ill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.dev.stack import Stack
from tests.conftest import accounts_stack


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("doctor"), workers=2, standbys=1) as stack:
        yield stack
