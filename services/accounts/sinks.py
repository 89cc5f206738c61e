"""What a database outside gets of accounts, to be joined and summed there: `python3 dev.py sink run accounts`."""

from collections.abc import Iterator

from sqlalchemy import BigInteger, Column, Integer, String

from services.accounts.domain.state import Account, Closed, Open, Unopened
from services.accounts.topology import ACCOUNTS
from shared.domain import Row
from shared.sinks import Change, Delete, RowsOf, Sink, Upsert


def account_rows(account_id: str, row: Row[Account] | None) -> Iterator[Change]:
    """The balances of accounts that are open or closed; nothing personal."""
    if row is None or isinstance(row.state, Unopened):
        yield Delete({"account_id": account_id})
        return
    figures = Open() if isinstance(row.state, Closed) else row.state
    yield Upsert(
        {
            "account_id": account_id,
            "phase": row.state.phase,
            "balance_cents": figures.balance_cents,
            "held_cents": figures.held_cents,
            "sequence": row.sequence,
        }
    )


SINKS = (
    Sink(
        "accounts",
        (
            Column("account_id", String(255), primary_key=True),
            Column("phase", String(20), nullable=False),
            Column("balance_cents", BigInteger, nullable=False),
            Column("held_cents", BigInteger, nullable=False),
            Column("sequence", Integer, nullable=False),
        ),
        RowsOf(ACCOUNTS, Account),
        account_rows,
    ),
)
