"""Why an account refuses a command."""

from shared.domain import DomainError


class UnknownAccount(DomainError):
    code = "account.unknown"


class AlreadyOpen(DomainError):
    code = "account.already_open"


class AlreadyClosed(DomainError):
    code = "account.closed"


class StillOwes(DomainError):
    code = "account.owes"


class Overpaid(DomainError):
    code = "account.overpaid"


class AmountNotPositive(DomainError):
    code = "account.amount_not_positive"


class AmountTooLarge(DomainError):
    code = "account.amount_too_large"
