"""The entries of an index sort as its values do, whatever values rows or callers have."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from shared.indexing import Value, entries, entry, key_of, place_of, sortable

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
    assert key_of(entry("field", value, key), "field") == key
    assert place_of(entry("field", value, key), "field") == (sortable(value), key)


def test_a_row_has_an_entry_for_each_field() -> None:
    row = b'{"sequence":1,"state":{"phase":"open","cents":18446744073709551616}}'
    found = list(entries(("phase", "cents", "missing"), b"ann", row))
    assert found == [entry("phase", "open", b"ann"), entry("cents", 2**63 - 1, b"ann"), entry("missing", None, b"ann")]


def test_a_field_without_an_order_is_named() -> None:
    with pytest.raises(TypeError, match="index 'lines': an index holds null, booleans, numbers or text, not a list"):
        list(entries(("lines",), b"ann", b'{"state":{"lines":[]}}'))
