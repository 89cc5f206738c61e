"""A worker of orders starts only with settings that it knows and accepts."""

from __future__ import annotations

import pytest

from services.orders.settings import OrdersSettings
from shared.runtime.settings import SettingsError
from shared.service import read_settings


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_DEADLINE_S", raising=False)


def test_given_settings_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings(OrdersSettings).deadline_s == 30
    monkeypatch.setenv("ORDERS_DEADLINE_S", "1.5")
    assert read_settings(OrdersSettings).deadline_s == 1.5


def test_a_misspelt_or_impossible_setting_is_named_with_the_allowed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_DEADLINE_S", "0")
    monkeypatch.setenv("ORDERS_DEADLNE_S", "5")
    with pytest.raises(SettingsError) as refused:
        read_settings(OrdersSettings)
    assert str(refused.value).splitlines() == [
        "ORDERS_DEADLNE_S is unknown; did you mean: ORDERS_DEADLINE_S",
        "ORDERS_DEADLINE_S='0' is not allowed: seconds until an order asks again: above 0, up to 86400",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SERVICE_HOST", "10.0.0.7"),
        ("SERVICE_PORT", "8000"),
        ("SERVICE_PORT_HTTP", "8000"),
        ("PORT", "tcp://10.0.0.7:8000"),
        ("PORT_8000_TCP", "tcp://10.0.0.7:8000"),
        ("PORT_8000_TCP_ADDR", "10.0.0.7"),
        ("PORT_8000_TCP_PORT", "8000"),
        ("PORTS", "8120-8129"),
    ],
)
def test_variables_that_a_platform_sets_are_no_settings(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ORDERS_{name}", value)
    assert read_settings(OrdersSettings).deadline_s == 30
