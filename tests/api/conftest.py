"""The two workers of accounts, and ids that no other test has used."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from shared.dev.stack import Stack
from tests.api.client import Client


@pytest.fixture
def workers(stack: Stack) -> Sequence[Client]:
    return [Client(url) for url in stack.urls("accounts")]


@pytest.fixture
def account() -> str:
    """The path of an account that does not exist."""
    return f"/accounts/api-{uuid.uuid4()}"


@pytest.fixture
def open_account(account: str, workers: Sequence[Client]) -> str:
    """The path of an account that owes nothing."""
    assert workers[0].post(account).status == 201
    return account


@pytest.fixture
def key() -> str:
    """A new Idempotency-Key."""
    return str(uuid.uuid4())
