"""Why an order refuses a command.

DomainError
└── OrderError
    ├── UnknownOrder           order.unknown
    ├── AlreadyPlaced          order.already_placed
    ├── NotOpen                order.not_open
    ├── NoLines                order.no_lines
    ├── TooManyLines           order.too_many_lines
    ├── SkuRepeated            order.sku_repeated
    ├── QuantityNotPositive    order.quantity_not_positive
    └── AmountOutOfRange       order.amount_out_of_range
"""

from shared.domain import DomainError


class OrderError(DomainError):
    """A rule of orders."""


class UnknownOrder(OrderError):
    code = "order.unknown"


class AlreadyPlaced(OrderError):
    code = "order.already_placed"


class NotOpen(OrderError):
    code = "order.not_open"


class NoLines(OrderError):
    code = "order.no_lines"


class TooManyLines(OrderError):
    code = "order.too_many_lines"


class SkuRepeated(OrderError):
    code = "order.sku_repeated"


class QuantityNotPositive(OrderError):
    code = "order.quantity_not_positive"


class AmountOutOfRange(OrderError):
    code = "order.amount_out_of_range"
