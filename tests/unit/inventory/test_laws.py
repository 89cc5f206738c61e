"""What holds for every item, whatever is asked of it."""

from collections import Counter
from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from services.inventory.domain.commands import (
    DiscontinueItem,
    InventoryCommand,
    NameItem,
    ReceiveStock,
    ReleaseStock,
    ReserveStock,
    ShipStock,
)
from services.inventory.domain.decide import DECIDER, decide
from services.inventory.domain.events import (
    InventoryEvent,
    ItemDiscontinued,
    ItemNamed,
    ReservationRefused,
    StockReceived,
    StockReleased,
    StockReserved,
    StockShipped,
)
from services.inventory.domain.state import INITIAL, Item, Listed, Unlisted, evolve
from shared.domain import Row, fold
from shared.testing.scenario import history

quantities = st.integers(min_value=-1, max_value=5) | st.integers(min_value=-(2**63), max_value=2**63 - 1)
orders = st.sampled_from(["o-1", "o-2", "o-3"])
days = st.dates(date(1997, 1, 1), date(1997, 1, 4))
commands = st.one_of(
    st.builds(ReceiveStock, quantity=quantities),
    st.builds(ReserveStock, order_id=orders, quantity=quantities, ordered_on=days),
    st.builds(ReserveStock, order_id=orders, quantity=st.integers(1, 3), ordered_on=days),
    st.builds(ReleaseStock, order_id=orders),
    st.builds(ShipStock, order_id=orders),
    st.builds(DiscontinueItem, since=days),
    st.builds(NameItem, name=st.sampled_from(["Abba", "Bach"])),
)
numbers = st.integers(-5, 5)
events = st.one_of(
    st.builds(StockReceived, quantity=numbers),
    st.builds(StockReserved, order_id=orders, quantity=numbers),
    st.builds(ReservationRefused, order_id=orders, quantity=numbers, code=st.text()),
    st.builds(StockReleased, order_id=orders, quantity=numbers),
    st.builds(StockShipped, order_id=orders, quantity=numbers),
    st.builds(ItemDiscontinued, since=days),
    st.builds(ItemNamed, name=st.text()),
)


@given(st.lists(commands))
def test_pieces_are_conserved_and_never_negative(asked: list[InventoryCommand]) -> None:
    physical, kept = 0, Counter[str]()
    item: Item = INITIAL
    for event in history(DECIDER, asked):
        item = evolve(item, event)
        match event:
            case StockReceived(quantity=quantity):
                physical += quantity
            case StockReserved(order_id=order_id, quantity=quantity):
                kept[order_id] += quantity
            case StockReleased(order_id=order_id, quantity=quantity):
                kept[order_id] -= quantity
            case StockShipped(order_id=order_id, quantity=quantity):
                kept[order_id] -= quantity
                physical -= quantity
        found = item if isinstance(item, Listed) else Listed()
        assert (found.physical, found.reservations) == (physical, dict(+kept))
        assert 0 <= found.reserved == kept.total() <= physical


@given(st.lists(commands))
def test_a_reservation_ends_once(asked: list[InventoryCommand]) -> None:
    """Reserved, then released or shipped, then perhaps reserved again: never twice the same in a row."""
    kept: set[str] = set()
    for event in history(DECIDER, asked):
        if isinstance(event, StockReserved):
            assert event.order_id not in kept
            kept.add(event.order_id)
        elif isinstance(event, StockReleased | StockShipped):
            kept.remove(event.order_id)


@given(st.lists(commands), orders, quantities, days)
def test_a_reservation_is_always_answered_once(
    asked: list[InventoryCommand], order_id: str, quantity: int, day: date
) -> None:
    item = fold(evolve, history(DECIDER, asked), INITIAL)
    command = ReserveStock(order_id=order_id, quantity=quantity, ordered_on=day)
    answers = decide(command, item)
    known = isinstance(item, Listed) and order_id in item.reservations
    assert [type(answer) for answer in answers] in ([[]] if known else [[StockReserved], [ReservationRefused]])


@given(st.lists(events))
def test_evolve_is_total_and_a_row_survives_its_bytes(past: list[InventoryEvent]) -> None:
    item: Item = fold(evolve, past, INITIAL)
    assert isinstance(item, Unlisted | Listed)
    row = Row(len(past), item, {}, 0)
    assert DECIDER.row_codec.decode(DECIDER.row_codec.encode(row)) == row
