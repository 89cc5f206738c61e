"""What a database outside gets of accounts."""

from services.accounts.domain.state import Account, Closed, Open, Unopened
from services.accounts.sinks import SINKS
from shared.domain import Encrypted, Row
from shared.sinks.sink import Changed, Values


def written(state: Account | None) -> Values | None:
    changed: Changed = {}
    SINKS[0].change(changed, "ann", None if state is None else Row(3, state, {}, 0))
    return changed[("ann",)]


def test_an_open_account_shows_what_is_owed_and_held() -> None:
    state = Open(holder=Encrypted("sealed:1:YQ==:YQ=="), balance_cents=5, held={"order-1": 7})
    assert written(state) == ("ann", "open", 5, 7, 3)


def test_a_closed_account_owes_nothing() -> None:
    assert written(Closed()) == ("ann", "closed", 0, 0, 3)


def test_an_account_that_was_never_opened_is_not_there() -> None:
    assert written(Unopened()) is None
    assert written(None) is None
