"""Every version of every message, once written, stays readable."""

from pathlib import Path

from services.pickups.service import SERVICE
from shared.testing.golden import Golden


def test_every_version_of_every_message_has_its_golden_record() -> None:
    assert SERVICE.decider is not None
    Golden(Path(__file__).parent / "golden", SERVICE.decider).check()
