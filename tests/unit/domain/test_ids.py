from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.ids import (
    AGGREGATE_ID_MAX_BYTES,
    check_aggregate_id,
    check_reference,
    derived_id,
    reference,
    referenced,
)


@pytest.mark.parametrize("text", ["1", "customer-00001", "ä", "a/b c", "é" * 64, "x" * 128, "😀" * 32])
def test_an_aggregate_id_is_any_short_text(text: str) -> None:
    assert check_aggregate_id(text) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("x" * 129, "at most 128 bytes, this one 129"),
        ("é" * 65, "at most 128 bytes, this one 130"),
        ("a\nb", "control"),
        ("a\x00b", "control"),
        ("\x7f", "control"),
        ("\x85", "control"),
        ("\ud800", "UTF-8"),
    ],
)
def test_an_illegal_aggregate_id_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_aggregate_id(text)


@given(st.text(max_size=AGGREGATE_ID_MAX_BYTES + 8))
def test_an_aggregate_id_fits_a_record_key(text: str) -> None:
    try:
        key = check_aggregate_id(text).encode()
    except ValueError:
        return
    assert 1 <= len(key) <= AGGREGATE_ID_MAX_BYTES
    assert key.decode() == text


@given(st.text(min_size=1, max_size=AGGREGATE_ID_MAX_BYTES))
def test_a_reference_leads_back_to_its_service_alone(text: str) -> None:
    try:
        aggregate_id = check_aggregate_id(text)
    except ValueError:
        return
    there = check_reference(reference("orders", aggregate_id))
    assert referenced("orders", there) == aggregate_id
    assert referenced("order", there) is referenced("orders:", there) is None


@pytest.mark.parametrize(("text", "reason"), [("", "empty"), ("x" * 193, "at most 192 bytes"), ("a\nb", "control")])
def test_an_illegal_reference_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_reference(text)


def test_a_derived_id_is_the_same_in_every_release() -> None:
    assert derived_id("customer-1", "command-1", "1") == "e0a809d0-51d8-5f92-813c-156f5eb2a6f5"


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_derived_ids_are_equal_only_for_equal_parts(some: list[str], others: list[str]) -> None:
    assert (derived_id(*some) == derived_id(*others)) == (some == others)


@given(st.lists(st.text(), max_size=4))
def test_a_derived_id_is_laid_out_as_a_version_5_uuid(parts: list[str]) -> None:
    uuid = UUID(derived_id(*parts))
    assert (uuid.version, uuid.variant, str(uuid)) == (5, RFC_4122, derived_id(*parts))
