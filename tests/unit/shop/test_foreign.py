"""The check of re-declared messages has something to check."""

from shared.domain.message import Command, Event
from tests.unit.test_redeclared import FOREIGN


def test_services_do_use_foreign_messages() -> None:
    assert {Command, Event} == {Command if issubclass(kind, Command) else Event for kind in FOREIGN}
