"""A shopping cart, which ends when it is checked out, and begins again with the next item."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from shared.domain import Command, Decider, DomainError, Event, State


class AddItem(Command):
    TYPE = "cart.add"

    item: str


class CheckOut(Command):
    TYPE = "cart.check_out"


class ItemAdded(Event):
    TYPE = "cart.item_added"

    item: str


class CheckedOut(Event):
    TYPE = "cart.checked_out"


class CartEmpty(DomainError):
    code = "cart.empty"


class Empty(State):
    phase: Literal["empty"] = "empty"


class Filled(State):
    phase: Literal["filled"] = "filled"
    items: tuple[str, ...]


Cart = Annotated[Empty | Filled, Field(discriminator="phase")]

INITIAL: Cart = Empty()


def decide(command: AddItem | CheckOut, cart: Cart) -> list[ItemAdded | CheckedOut]:
    """The events that follow from `command`. Raises CartEmpty."""
    match command, cart:
        case AddItem(item=item), _:
            return [ItemAdded(item=item)]
        case CheckOut(), Empty():
            raise CartEmpty("CheckOut refused: there is nothing in the cart")
        case CheckOut(), _:
            return [CheckedOut()]
        case _:
            assert_never(command)


def evolve(cart: Cart, event: ItemAdded | CheckedOut) -> Cart:
    """The cart after `event`: once it is checked out, as it was before its first item."""
    match event:
        case ItemAdded(item=item):
            return Filled(items=(*(cart.items if isinstance(cart, Filled) else ()), item))
        case CheckedOut():
            return INITIAL
        case _:
            assert_never(event)


DECIDER: Decider[AddItem | CheckOut, ItemAdded | CheckedOut, Cart] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=(AddItem, CheckOut),
    events=(ItemAdded, CheckedOut),
    state=Cart,
)
