"""The entries of an index sort as its values do, whatever values rows or callers have."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic_core import to_json

from shared.domain.state import State
from shared.domain.times import Day
from shared.tables.indexing import Indexes, Value, entry, key_of, kinds, name_of, prefix, sortable
from tests.accounts.domain.decide import DECIDER

KEYS = some.text("abc-ü", min_size=1).map(str.encode)
INTEGERS = some.integers() | some.integers(-(2**63), 2**63 - 1)
TEXTS = some.text(some.characters(exclude_categories=["Cs"], min_codepoint=2))
FLOATS = some.floats(allow_nan=False)
VALUES = some.none() | some.booleans() | INTEGERS | TEXTS | FLOATS


@given(INTEGERS, INTEGERS)
@example(2**63 - 1, 2**63)
@example(-(2**63) - 1, -(2**63))
def test_integers_sort_as_they_count(one: int, other: int) -> None:
    """Integers beyond 64 bits sort with the last that 64 bits can hold: a sum may grow that large."""
    low, high = sorted((one, other))
    assert sortable(low) <= sortable(high)
    if -(2**63) <= low < high < 2**63:
        assert sortable(low) < sortable(high)


@given(FLOATS, FLOATS)
@example(0.0, -0.0)
def test_floats_sort_as_they_count(one: float, other: float) -> None:
    assert (sortable(one) < sortable(other)) == (one < other)


@given(TEXTS, TEXTS, KEYS, KEYS)
def test_entries_of_texts_sort_as_the_texts_do(one: str, other: str, key: bytes, another: bytes) -> None:
    assert (entry("name", one, key) < entry("name", other, another)) == ((one, key) < (other, another))


@given(VALUES, KEYS)
def test_an_entry_has_the_value_and_the_key_of_its_row(value: Value, key: bytes) -> None:
    found = entry("field", value, key)
    assert key_of(found) == key
    assert found == prefix("field") + sortable(value) + b"\x00" + key


SOME = some.none() | some.booleans() | INTEGERS | TEXTS


@given(some.tuples(SOME, SOME, KEYS), some.tuples(SOME, SOME, KEYS))
def test_entries_of_several_fields_sort_by_one_after_the_other(
    one: tuple[Value, Value, bytes], other: tuple[Value, Value, bytes]
) -> None:
    indexes = Indexes((("name", "cents"),))
    (first,), (second,) = (
        list(indexes.entries(key, to_json({"state": {"name": name, "cents": cents}})))
        for name, cents, key in (one, other)
    )
    assert first.startswith(prefix(name_of(("name", "cents"))))
    places = [(sortable(name), sortable(cents), key) for name, cents, key in (one, other)]
    assert (first < second) == (places[0] < places[1])


def test_a_field_and_an_index_of_it_and_another_are_told_apart() -> None:
    alone, both = prefix("name"), prefix(name_of(("name", "cents")))
    assert not alone.startswith(both)
    assert not both.startswith(alone)


def test_a_row_has_an_entry_for_each_field() -> None:
    row = b'{"sequence":1,"state":{"phase":"open","cents":18446744073709551616}}'
    found = list(Indexes(("phase", "cents", "missing")).entries(b"ann", row))
    assert found == [entry("phase", "open", b"ann"), entry("cents", 2**63 - 1, b"ann"), entry("missing", None, b"ann")]


@pytest.mark.parametrize("state", [b"null", b"5", b"[]", b"{}", b'{"lines":[]}', b'{"lines":{"a":1}}'])
def test_what_has_no_order_is_null(state: bytes) -> None:
    assert list(Indexes(("lines",)).entries(b"ann", b'{"state":%b}' % state)) == [entry("lines", None, b"ann")]


class Customer(State):
    name: str


class Rated(Customer):
    """As of a later release."""

    region: str = "eu"
    rating: float = 0.0


class Counted(Customer):
    """Between the two: `rating` was an integer."""

    rating: int = 0


RATED = Indexes(("region", "rating"), Rated)


@pytest.mark.parametrize(
    ("state", "region", "rating"),
    [
        (Customer(name="ann"), "eu", 0.0),
        (Counted(name="ann", rating=5), "eu", 5.0),
        (Rated(name="ann", region="us", rating=5), "us", 5.0),
    ],
)
def test_a_row_of_an_earlier_release_has_the_entries_that_it_is_read_with(
    state: Customer, region: str, rating: float
) -> None:
    row = b'{"state":%b}' % state.model_dump_json().encode()
    assert list(RATED.entries(b"ann", row)) == [entry("region", region, b"ann"), entry("rating", rating, b"ann")]


def test_a_row_that_only_a_later_release_can_read_has_the_entries_that_it_was_written_with() -> None:
    row = b'{"state":{"name":["ann","lee"],"region":"us","rating":1.5}}'
    assert list(RATED.entries(b"ann", row)) == [entry("region", "us", b"ann"), entry("rating", 1.5, b"ann")]


def test_what_is_declared_differs_where_other_entries_are_made_of_the_same_rows() -> None:
    class Renowned(Rated):
        rating: float = 5.0

    declared = [Indexes(("rating",), each).declared for each in (Customer, Counted, Rated, Renowned)]
    assert len(set(declared)) == len(declared)
    assert Indexes((), Rated).declared == b""


def test_what_is_declared_stays_when_only_a_description_changes() -> None:
    class Told(State):
        rating: Annotated[float | None, Field(title="Stars", description="from 1 to 5", examples=[5])] = None

    class Silent(State):
        rating: float | None = None

    assert Indexes(("rating",), Told).declared == Indexes(("rating",), Silent).declared


def test_a_value_without_an_order_cannot_be_looked_for() -> None:
    with pytest.raises(TypeError, match="an index holds null, booleans, numbers or text, not a list"):
        sortable(cast(Any, []))


class Odd:
    """A type that JSON Schema can't describe."""


class Pile(State):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    since: Day
    weight: float | None
    pieces: int = Field(alias="count")
    odd: Annotated[Odd, BeforeValidator(lambda _: Odd())]
    packed: Annotated[date, PlainSerializer(lambda day: day.toordinal())]
    one_of: Literal["a", None] = None
    inner: Pile | None = None


class Nothing(State):
    """A phase without a field."""


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("since", {"string"}),
        ("weight", {"number", "null"}),
        ("count", {"integer"}),
        ("pieces", set()),
        ("inner", {"object", "null"}),
        ("colour", set()),
    ],
)
def test_the_types_of_a_field_are_known_by_the_name_that_it_has_in_a_row(field: str, expected: set[str]) -> None:
    assert kinds(Pile, field) == kinds(Nothing | Pile | None, field) == expected


def test_the_fields_of_all_phases_are_known() -> None:
    fields = ("phase", "balance_cents", "order_limit_cents", "balance")
    assert [kinds(DECIDER.state, field) for field in fields] == [{"string"}, {"integer"}, {"integer", "null"}, set()]


def test_what_has_any_fields_has_every_field() -> None:
    assert kinds(dict[str, int], "seen") == {"integer"}
    assert kinds(dict, "seen") == kinds(Any, "seen") >= {"integer", "number", "string"}


@pytest.mark.parametrize("field", ["odd", "packed", "one_of"])
def test_a_field_whose_type_nothing_tells_may_be_anything(field: str) -> None:
    assert kinds(Pile, field) >= {"integer", "number", "string"}
