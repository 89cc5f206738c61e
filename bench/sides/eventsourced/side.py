"""Accounts on FastAPI with eventsourcing: an account is its events in PostgreSQL, folded at each request.

Run by an interpreter that has both: ONEFOLD_SINK_DATABASE=url ONEFOLD_HTTP_PORT=port python side.py
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"
# what it extends is not installed where types are checked

import os
from typing import ClassVar
from uuid import NAMESPACE_URL, UUID, uuid5

import uvicorn
from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError
from fastapi import FastAPI, HTTPException
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel


def uuid_of(account_id: str) -> UUID:
    return uuid5(NAMESPACE_URL, f"/accounts/{account_id}")


class Account(Aggregate):
    @event("Opened")
    def __init__(self, account_id: str) -> None:
        self.account_id = account_id
        self.balance_cents = 0

    @staticmethod
    def create_id(account_id: str) -> UUID:
        return uuid_of(account_id)

    @event("Charged")
    def charge(self, amount_cents: int) -> None:
        self.balance_cents += amount_cents


class Accounts(Application):
    snapshotting_intervals: ClassVar = {Account: 50}


class Charge(BaseModel):
    amount_cents: int


class Decided(BaseModel):
    sequence: int


class AccountView(BaseModel):
    account_id: str
    balance_cents: int
    sequence: int


def store() -> Accounts:
    place = conninfo_to_dict(os.environ["ONEFOLD_SINK_DATABASE"].replace("+psycopg", ""))
    return Accounts(
        env={
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": place["dbname"],
            "POSTGRES_HOST": place["host"],
            "POSTGRES_PORT": place["port"],
            "POSTGRES_USER": place["user"],
            "POSTGRES_PASSWORD": "",
        }
    )


accounts = store()
api = FastAPI()


@api.get("/readyz")
def ready() -> None:
    """At once."""


@api.post("/accounts/{account_id}", status_code=201)
def open_account(account_id: str) -> Decided:
    return saved(Account(account_id))


@api.post("/accounts/{account_id}/charges", status_code=201)
def charge(account_id: str, charge: Charge) -> Decided:
    account = found(account_id)
    account.charge(charge.amount_cents)
    return saved(account)


@api.get("/accounts/{account_id}")
def show(account_id: str) -> AccountView:
    account = found(account_id)
    return AccountView(account_id=account.account_id, balance_cents=account.balance_cents, sequence=account.version)


def found(account_id: str) -> Account:
    try:
        return accounts.repository.get(uuid_of(account_id))
    except AggregateNotFoundError:
        raise HTTPException(404) from None


def saved(account: Account) -> Decided:
    try:
        accounts.save(account)
    except IntegrityError:
        raise HTTPException(409, "somebody else was faster") from None
    return Decided(sequence=account.version)


if __name__ == "__main__":
    uvicorn.run(api, host="127.0.0.1", port=int(os.environ["ONEFOLD_HTTP_PORT"]), log_level="warning")
