"""Why an item refuses a command.

DomainError
└── InventoryError
    ├── UnknownItem            inventory.unknown
    ├── OutOfStock             inventory.out_of_stock
    ├── Discontinued           inventory.discontinued
    ├── NotReserved            inventory.not_reserved
    ├── QuantityNotPositive    inventory.quantity_not_positive
    ├── QuantityTooLarge       inventory.quantity_too_large
    └── TooManyReservations    inventory.too_many_reservations
"""

from shared.domain import DomainError


class InventoryError(DomainError):
    """A rule of inventory."""


class UnknownItem(InventoryError):
    code = "inventory.unknown"


class OutOfStock(InventoryError):
    code = "inventory.out_of_stock"


class Discontinued(InventoryError):
    code = "inventory.discontinued"


class NotReserved(InventoryError):
    code = "inventory.not_reserved"


class QuantityNotPositive(InventoryError):
    code = "inventory.quantity_not_positive"


class QuantityTooLarge(InventoryError):
    code = "inventory.quantity_too_large"


class TooManyReservations(InventoryError):
    code = "inventory.too_many_reservations"
