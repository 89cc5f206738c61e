"""Messages are for ever: each version of each type, once written, stays readable.

`golden` holds one record of every type and version, as a producer of that time wrote it.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.accounts.domain.commands import (
    AccountCommand,
    Charge,
    ChargeOrder,
    CloseAccount,
    OpenAccount,
    Pay,
    RefundOrder,
    SetLimits,
    SettleOrder,
)
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    ChargeRefused,
    LimitsSet,
    OrderCharged,
    OrderRefunded,
    OrderSettled,
    PaymentReceived,
)
from shared.domain import BadMessage
from shared.testing.golden import Golden

golden = Golden(Path(__file__).parent / "golden", DECIDER)

EVENTS: dict[str, AccountEvent] = {
    "account.opened.v1": AccountOpened(),
    "account.limits_set.v1": LimitsSet(order_limit_cents=5000, credit_limit_cents=None),
    "account.charged.v1": AccountCharged(amount_cents=2933),
    "account.charged.v2": AccountCharged(amount_cents=2933),
    "account.payment_received.v1": PaymentReceived(amount_cents=2933),
    "account.closed.v1": AccountClosed(),
    "account.order_charged.v1": OrderCharged(order_id="order-00002", amount_cents=2933),
    "account.charge_refused.v1": ChargeRefused(
        order_id="order-00002", amount_cents=2933, code="account.order_limit_exceeded"
    ),
    "account.order_refunded.v1": OrderRefunded(order_id="order-00002", amount_cents=2933),
    "account.order_settled.v1": OrderSettled(order_id="order-00002", amount_cents=2933),
}
COMMANDS: dict[str, AccountCommand] = {
    "account.open.v1": OpenAccount(),
    "account.set_limits.v1": SetLimits(order_limit_cents=5000, credit_limit_cents=None),
    "account.charge.v1": Charge(amount_cents=2933),
    "account.pay.v1": Pay(amount_cents=2933),
    "account.close.v1": CloseAccount(),
    "account.charge_order.v1": ChargeOrder(order_id="order-00002", amount_cents=2933),
    "account.refund_order.v1": RefundOrder(order_id="order-00002"),
    "account.settle_order.v1": SettleOrder(order_id="order-00002"),
}


def charged_v1(amount: object) -> bytes:
    record = json.loads(golden("account.charged.v1"))
    return json.dumps(record | {"data": {"amount": amount}}).encode()


@pytest.mark.parametrize(("name", "event"), EVENTS.items())
def test_every_event_ever_written_can_be_read(name: str, event: AccountEvent) -> None:
    envelope = DECIDER.event_codec.decode(golden(name))
    assert envelope.data == event
    assert envelope.schema_version == event.VERSION


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_every_command_ever_written_can_be_read(name: str, command: AccountCommand) -> None:
    assert DECIDER.command_codec.decode(golden(name)).data == command


def test_every_version_of_every_message_has_its_golden_record() -> None:
    golden.check()
    assert golden.names() == EVENTS.keys() | COMMANDS.keys()


def test_an_account_is_opened_with_limits_since_there_are_some() -> None:
    record = json.loads(golden("account.opened.v1")) | {"data": {"order_limit_cents": 5000, "credit_limit_cents": None}}
    assert DECIDER.event_codec.decode(json.dumps(record).encode()).data == AccountOpened(order_limit_cents=5000)


@given(st.integers(min_value=1, max_value=999_999_999))
def test_dollars_become_cents_exactly(cents: int) -> None:
    envelope = DECIDER.event_codec.decode(charged_v1(f"{cents // 100}.{cents % 100:02d}"))
    assert envelope.data == AccountCharged(amount_cents=cents)


@pytest.mark.parametrize(
    "amount", ["29.999", "29.9", "29", "-1.00", "1e3", "NaN", "٣.00", "3.٠٠", "1.00\n", "", 29.33, None]
)
def test_what_is_not_dollars_and_cents_is_a_bad_message(amount: object) -> None:
    with pytest.raises(BadMessage, match=r"not version 1 of account\.charged"):
        DECIDER.event_codec.decode(charged_v1(amount))


@pytest.mark.parametrize("amount", [29.99, 29.0, "2999", True, None, 2**63, -(2**63) - 1, []])
def test_an_amount_that_is_not_a_64_bit_int_is_no_command(amount: object) -> None:
    record = json.loads(golden("account.charge.v1"))
    with pytest.raises(BadMessage, match="amount_cents"):
        DECIDER.command_codec.decode(json.dumps(record | {"data": {"amount_cents": amount}}).encode())
