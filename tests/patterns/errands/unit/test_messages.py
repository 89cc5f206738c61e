"""Every version of every message, once written, stays readable."""

from pathlib import Path

from shared.testing.golden import Golden
from tests.patterns.errands.domain.decide import DECIDER

golden = Golden(Path(__file__).parent / "golden", DECIDER)


def test_every_version_of_every_message_has_its_golden_record() -> None:
    golden.check()
