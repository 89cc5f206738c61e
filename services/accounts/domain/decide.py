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
    TooManyOrders,
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
from shared.domain import Decider

MAX_AMOUNT_CENTS = 1_000_000_00
MAX_HELD = 1_200  # orders: two states, with ids of any kind, have to fit into a record of the history index, of 1 MiB


def decide(command: AccountCommand, account: Account) -> list[AccountEvent]:
    """The events that follow from `command`; an empty list means that nothing changes. Raises AccountError.

    The holder's name is `Encrypted` here: no rule can depend on what it says.
    """
    name = type(command).__name__
    match command, account:
        case ChargeOrder() | RefundOrder() | SettleOrder(), _:
            return _of_order(command, account)
        case _, Closed():
            raise AlreadyClosed(f"{name} refused: the account is closed")
        case OpenAccount(holder=holder, order_limit_cents=order, credit_limit_cents=credit), Unopened():
            _check_limits(command)
            return [AccountOpened(holder=holder, order_limit_cents=order, credit_limit_cents=credit)]
        case OpenAccount(), _:
            raise AlreadyOpen(f"{name} refused: the account is open")
        case _, Unopened():
            raise UnknownAccount(f"{name} refused: the account was never opened")
        case Charge(amount_cents=amount), _:
            _check_amount(amount)
            _check_credit(amount, account)
            return [AccountCharged(amount_cents=amount)]
        case Pay(amount_cents=amount), _:
            _check_amount(amount)
            if amount > account.balance_cents:
                raise Overpaid(f"{name} refused: {amount} cents are more than the {account.balance_cents} owed")
            return [PaymentReceived(amount_cents=amount)]
        case SetLimits(order_limit_cents=order, credit_limit_cents=credit), _:
            _check_limits(command)
            return [LimitsSet(order_limit_cents=order, credit_limit_cents=credit)]
        case CloseAccount(), _:
            if account.balance_cents > 0:
                raise StillOwes(f"{name} refused: {account.balance_cents} cents are owed")
            if account.held:
                raise OrdersUnderWay(f"{name} refused: {len(account.held)} orders are neither settled nor refunded")
            return [AccountClosed()]
        case _:
            assert_never(command)


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
                _check_amount(amount_cents)
                _check_credit(amount_cents, account)
            if len(account.held) >= MAX_HELD:
                raise TooManyOrders(f"{MAX_HELD} orders are under way already")
        case Closed():
            raise AlreadyClosed("the account is closed")
        case Unopened():
            raise UnknownAccount("the account was never opened")
        case _:
            assert_never(account)


def _check_credit(amount_cents: int, account: Open) -> None:
    limit = account.credit_limit_cents
    owed = account.balance_cents + account.held_cents
    if limit is not None and owed + amount_cents > limit:
        raise CreditExceeded(f"{amount_cents} cents refused: with the {owed} owed, they exceed the limit of {limit}")


def _check_limits(command: OpenAccount | SetLimits) -> None:
    limits = command.order_limit_cents, command.credit_limit_cents
    if any(limit is not None and limit < 0 for limit in limits):
        raise LimitNegative(f"{type(command).__name__} refused: a limit is at least 0")


def _check_amount(amount_cents: int) -> None:
    if amount_cents <= 0:
        raise AmountNotPositive(f"{amount_cents} cents refused: an amount is at least 1 cent")
    if amount_cents > MAX_AMOUNT_CENTS:
        raise AmountTooLarge(f"an amount is at most {MAX_AMOUNT_CENTS} cents")


DECIDER: Decider[AccountCommand, AccountEvent, Account] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(AccountCommand),
    events=get_args(AccountEvent),
    state=Account,
    upcasters=UPCASTERS,
)
