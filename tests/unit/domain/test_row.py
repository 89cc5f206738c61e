import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.domain.message import Part
from shared.domain.row import FAILED, FAILURES, FAILURES_KEPT, Outcome, Row, RowCodec
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.state import Account, Closed, Open, Unopened

CODEC: RowCodec[Account] = DECIDER.row_codec

states = st.one_of(st.builds(Unopened), st.builds(Open, balance_cents=st.integers()), st.builds(Closed))
failures = st.builds(
    Outcome, st.text(), st.integers(min_value=0), st.sampled_from(sorted(FAILURES)), st.none() | st.text(), st.text()
)


def test_a_row_is_readable_json() -> None:
    accepted = Outcome("c-1", 1, None, None, "f1")
    failed = Outcome("c-2", 1, FAILED, "too much", "f2")
    row = DECIDER.initial_row.after(accepted, Closed(), 7).after(failed, Closed(), 9)
    assert CODEC.encode(row) == (
        b'{"sequence":1,"state":{"phase":"closed","balance_cents":0},'
        b'"outcomes":{"c-2":[1,"f2","command.failed","too much"]},"offset":9}'
    )


@given(states, st.lists(failures), st.integers(min_value=0))
def test_a_row_survives_the_table(state: Account, recent: list[Outcome], offset: int) -> None:
    row = DECIDER.initial_row
    for outcome in recent:
        row = row.after(outcome, state, offset)
    assert CODEC.decode(CODEC.encode(row)) == CODEC.decode_whole(CODEC.encode(row)) == row
    assert CODEC.encode(CODEC.decode(CODEC.encode(row))) == CODEC.encode(row) == CODEC.encode_checked([row])[0]


@given(failures)
def test_a_failure_is_recalled_as_it_was(outcome: Outcome) -> None:
    row = DECIDER.initial_row.after(outcome, Closed(), 0)
    assert row.outcome(outcome.command_id) == outcome


def test_an_unknown_command_has_no_outcome() -> None:
    assert DECIDER.initial_row.outcome("c-1") is None


def test_only_the_latest_failures_are_kept_and_nothing_of_what_was_decided() -> None:
    row: Row[Account] = DECIDER.initial_row
    for number in range(FAILURES_KEPT + 3):
        row = row.after(Outcome(f"f-{number}", number, FAILED, None, ""), Closed(), number)
        row = row.after(Outcome(f"c-{number}", number, None, None, ""), Closed(), number)
    kept = [f"f-{number}" for number in range(3, FAILURES_KEPT + 3)]
    assert list(row.outcomes) == kept
    assert list(row.without("f-9").outcomes) == [each for each in kept if each != "f-9"]


def test_a_command_that_fails_again_displaces_no_other() -> None:
    row: Row[Account] = DECIDER.initial_row
    for number in (*range(FAILURES_KEPT), 7):
        row = row.after(Outcome(f"f-{number}", number, FAILED, None, ""), Closed(), number)
    assert list(row.outcomes) == [f"f-{number}" for number in (*range(7), *range(8, FAILURES_KEPT), 7)]


def test_a_row_of_another_shape_crashes_loudly() -> None:
    with pytest.raises(ValidationError):
        CODEC.decode(b'{"sequence":1,"state":{"phase":"frozen"},"outcomes":{},"offset":0}')


def test_a_field_of_a_later_release_is_not_seen_and_not_lost() -> None:
    later = b'{"sequence":1,"state":{"phase":"open","frozen":true},"outcomes":{},"offset":0}'
    assert CODEC.decode(later).state == Open()
    with pytest.raises(ValidationError, match="frozen"):
        CODEC.decode_whole(later)


class Line(Part):
    sku: str


def test_an_unknown_field_inside_the_state_is_not_lost_either() -> None:
    lines: RowCodec[list[Line]] = RowCodec(list[Line])
    later = b'{"sequence":1,"state":[{"sku":"abba","gift":true}],"outcomes":{},"offset":0}'
    assert lines.decode(later).state == [Line(sku="abba")]
    with pytest.raises(ValidationError, match="gift"):
        lines.decode_whole(later)
