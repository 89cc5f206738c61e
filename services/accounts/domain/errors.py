"""Why an account refuses a command.

DomainError
└── AccountError
    ├── UnknownAccount       account.unknown
    ├── AlreadyOpen          account.already_open
    ├── AlreadyClosed        account.closed
    ├── StillOwes            account.owes
    ├── Overpaid             account.overpaid
    ├── AmountNotPositive    account.amount_not_positive
    ├── AmountTooLarge       account.amount_too_large
    ├── LimitNegative        account.limit_negative
    ├── OrderLimitExceeded   account.order_limit_exceeded
    ├── CreditExceeded       account.credit_exceeded
    ├── OrdersUnderWay       account.orders_under_way
    ├── TooManyOrders        account.too_many_orders
    └── NotCharged           account.not_charged
"""

from shared.domain import DomainError


class AccountError(DomainError):
    """A rule of accounts."""


class UnknownAccount(AccountError):
    code = "account.unknown"


class AlreadyOpen(AccountError):
    code = "account.already_open"


class AlreadyClosed(AccountError):
    code = "account.closed"


class StillOwes(AccountError):
    code = "account.owes"


class Overpaid(AccountError):
    code = "account.overpaid"


class AmountNotPositive(AccountError):
    code = "account.amount_not_positive"


class AmountTooLarge(AccountError):
    code = "account.amount_too_large"


class LimitNegative(AccountError):
    code = "account.limit_negative"


class OrderLimitExceeded(AccountError):
    code = "account.order_limit_exceeded"


class CreditExceeded(AccountError):
    code = "account.credit_exceeded"


class OrdersUnderWay(AccountError):
    code = "account.orders_under_way"


class TooManyOrders(AccountError):
    code = "account.too_many_orders"


class NotCharged(AccountError):
    code = "account.not_charged"
