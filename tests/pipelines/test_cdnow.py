"""The project's central proof, for all purchases of CDNOW."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from demo.cdnow import read_purchases
from services.accounts.domain.commands import AccountCommand, Charge, OpenAccount
from tests.pipelines.proof import prove


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_real_histories_are_folded_alike_everywhere(spark: Any, tmp_path: Path) -> None:
    histories: dict[str, list[AccountCommand]] = defaultdict(lambda: [OpenAccount()])
    for purchase in sorted(read_purchases(), key=lambda purchase: purchase.date):
        histories[purchase.customer].append(Charge(amount_cents=purchase.amount_cents))
    prove(histories, spark, tmp_path)
