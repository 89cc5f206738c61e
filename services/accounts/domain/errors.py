"""Why a command to an account can be refused.

DomainError
└── AccountError
    ├── UnknownAccount       account.unknown
    ├── AlreadyOpen          account.already_open
    ├── AlreadyClosed        account.closed
    ├── StillOwes            account.owes
    ├── Overpaid             account.overpaid
    ├── AmountNotPositive    account.amount_not_positive
    └── AmountTooLarge       account.amount_too_large
"""

from shared.es.errors import DomainError


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
