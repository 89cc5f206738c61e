"""What a database outside gets of the tests' own accounts: each account, and each charge."""

from collections.abc import Iterator

from sqlalchemy import BigInteger, Column, DateTime, Integer, String, Text

from shared.domain import EventEnvelope, Row
from shared.sinks import Change, Delete, EventsOf, RowsOf, Sink, Upsert
from shared.topology import Table, Topic
from tests.accounts.domain.events import AccountCharged
from tests.accounts.domain.state import Account, Closed, Open
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.topology import ACCOUNTS, EVENTS


def account_rows(account_id: str, row: Row[Account] | None) -> Iterator[Change]:
    """An account is there while it is open, or was never opened."""
    if row is None or isinstance(row.state, Closed):
        yield Delete({"account_id": account_id})
        return
    account = row.state if isinstance(row.state, Open) else Open()
    yield Upsert(
        {
            "account_id": account_id,
            "holder": account.holder,
            "balance_cents": account.balance_cents,
            "sequence": row.sequence,
        }
    )


def charge_rows(account_id: str, event: EventEnvelope[AccountCharged]) -> Iterator[Change]:
    yield Upsert(
        {
            "account_id": account_id,
            "sequence": event.sequence,
            "amount_cents": event.data.amount_cents,
            "charged_at": event.occurred_at,
        }
    )


def accounts_sink(version: int = 1, *, table: Table = ACCOUNTS, opens: bool = False) -> Sink:
    columns = (
        Column("account_id", String(255), primary_key=True),
        Column("holder", Text),
        Column("balance_cents", BigInteger, nullable=False),
        Column("sequence", Integer, nullable=False),
    )
    return Sink("accounts", columns, RowsOf(table, Account), account_rows, version, opens)


def charges_sink(events: Topic = EVENTS) -> Sink:
    columns = (
        Column("account_id", String(255), primary_key=True),
        Column("sequence", Integer, primary_key=True),
        Column("amount_cents", BigInteger, nullable=False),
        Column("charged_at", DateTime(timezone=True), nullable=False),
    )
    return Sink("charges", columns, EventsOf(events, (AccountCharged,), UPCASTERS), charge_rows)


SINKS = (accounts_sink(), charges_sink())
