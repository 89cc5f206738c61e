"""What the doctor says of the certificates that a real broker shows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from shared.doctor.certificates import check_certificates, read_certificates
from shared.doctor.snapshot import Snapshot
from shared.operations.provision import Placement, placed
from shared.runtime.settings import Settings
from tests.secure.conftest import Secured

pytestmark = pytest.mark.broker


def test_a_certificate_that_has_expired_is_told_and_a_new_one_is_not(secured: Secured) -> None:
    user, password, ca, *_ = secured.principal("accounts")
    settings = Settings(kafka_user=user, kafka_password=password, kafka_ca=Path(ca))
    nothing = Snapshot(settings, [], time.time(), Placement(frozenset(), {}))
    found = read_certificates(settings, [secured.bootstrap, secured.expired])
    assert len(found) == 3
    (expired,) = check_certificates(replace(nothing, certificates=found))
    assert f"the broker at {secured.expired} has expired" in expired.what
    assert expired.evidence == "1.0 days ago"


def test_brokers_say_where_they_are(secured: Secured) -> None:
    assert list(placed(secured.operators).addresses) == [secured.operators]
