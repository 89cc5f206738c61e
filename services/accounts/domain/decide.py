"""Which commands an account accepts, and which events follow."""

from typing import assert_never, get_args

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
from services.accounts.domain.errors import (
    AccountError,
    AlreadyClosed,
    AlreadyOpen,
    AmountNotPositive,
    AmountTooLarge,
    CreditExceeded,
    LimitNegative,
    NotCharged,
    OrderLimitExceeded,
    OrdersUnderWay,
    Overpaid,
    StillOwes,
    UnknownAccount,
)
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
from services.accounts.domain.state import INITIAL, Account, Closed, Open, Unopened, evolve
from services.accounts.domain.upcasters import UPCASTERS
from shared.es.decider import Decider

MAX_AMOUNT_CENTS = 1_000_000_00


def decide(command: AccountCommand, account: Account) -> list[AccountEvent]:
    """The events that follow from `command`; an empty list means that nothing changes. Raises AccountError."""
    if isinstance(command, ChargeOrder | RefundOrder | SettleOrder):
        return _of_order(command, account)
    name = type(command).__name__
    match command, account:
        case Charge(amount_cents=amount), Open():
            return [AccountCharged(amount_cents=_within_credit(_checked(amount), account))]
        case Pay(amount_cents=amount), Open(balance_cents=balance):
            if _checked(amount) > balance:
                raise Overpaid(f"{name} refused: {amount} cents are more than the {balance} owed")
            return [PaymentReceived(amount_cents=amount)]
        case OpenAccount(), Unopened():
            return [AccountOpened(holder=command.holder, **_limits(command))]
        case OpenAccount(), Open():
            raise AlreadyOpen(f"{name} refused: the account is open")
        case SetLimits(), Open():
            return [LimitsSet(**_limits(command))]
        case CloseAccount(), Open(balance_cents=balance):
            if balance > 0:
                raise StillOwes(f"{name} refused: {balance} cents are owed")
            if account.held:
                raise OrdersUnderWay(f"{name} refused: {len(account.held)} orders are neither settled nor refunded")
            return [AccountClosed()]
        case _, Closed():
            raise AlreadyClosed(f"{name} refused: the account is closed")
        case _:
            raise UnknownAccount(f"{name} refused: the account was never opened")


def _of_order(command: ChargeOrder | RefundOrder | SettleOrder, account: Account) -> list[AccountEvent]:
    order_id = command.order_id
    held = account.held.get(order_id) if isinstance(account, Open) else None
    match command:
        case ChargeOrder():
            return [_answer(command, account)] if held is None else []
        case RefundOrder():
            return [] if held is None else [OrderRefunded(order_id=order_id, amount_cents=held)]
        case SettleOrder():
            if held is None:
                raise NotCharged(f"SettleOrder refused: nothing is held for order {order_id}")
            return [OrderSettled(order_id=order_id, amount_cents=held)]
        case _:
            assert_never(command)


def _answer(command: ChargeOrder, account: Account) -> OrderCharged | ChargeRefused:
    """A process waits for this answer, so a refusal is an event as well."""
    order_id, amount = command.order_id, command.amount_cents
    try:
        _check_order(amount, account)
    except AccountError as refusal:
        return ChargeRefused(order_id=order_id, amount_cents=amount, code=refusal.code)
    return OrderCharged(order_id=order_id, amount_cents=amount)


def _check_order(amount_cents: int, account: Account) -> None:
    match account:
        case Open(order_limit_cents=limit):
            if limit is not None and amount_cents > limit:
                raise OrderLimitExceeded(f"{amount_cents} cents are more than the {limit} one order may cost")
            if amount_cents != 0:  # an order may be free
                _within_credit(_checked(amount_cents), account)
        case Closed():
            raise AlreadyClosed("the account is closed")
        case Unopened():
            raise UnknownAccount("the account was never opened")
        case _:
            assert_never(account)


def _within_credit(amount_cents: int, account: Open) -> int:
    limit = account.credit_limit_cents
    owed = account.balance_cents + account.held_cents
    if limit is not None and owed + amount_cents > limit:
        raise CreditExceeded(f"{amount_cents} cents refused: with the {owed} owed, they exceed the limit of {limit}")
    return amount_cents


def _limits(command: OpenAccount | SetLimits) -> dict[str, int | None]:
    limits = {"order_limit_cents": command.order_limit_cents, "credit_limit_cents": command.credit_limit_cents}
    if any(limit is not None and limit < 0 for limit in limits.values()):
        raise LimitNegative(f"{type(command).__name__} refused: a limit is at least 0")
    return limits


def _checked(amount_cents: int) -> int:
    if amount_cents <= 0:
        raise AmountNotPositive(f"{amount_cents} cents refused: an amount is at least 1 cent")
    if amount_cents > MAX_AMOUNT_CENTS:
        raise AmountTooLarge(f"an amount is at most {MAX_AMOUNT_CENTS} cents")
    return amount_cents


DECIDER: Decider[AccountCommand, AccountEvent, Account] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(AccountCommand),
    events=get_args(AccountEvent),
    state=Account,
    upcasters=UPCASTERS,
)
