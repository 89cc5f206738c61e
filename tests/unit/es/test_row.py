import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import ValidationError

from services.accounts.domain.decide import DECIDER
from services.accounts.domain.state import Account, Closed, Open, Unopened
from shared.es.message import Part
from shared.es.row import FAILED, OUTCOMES_KEPT, Outcome, Row, RowCodec

CODEC: RowCodec[Account] = DECIDER.row_codec

states = st.one_of(st.builds(Unopened), st.builds(Open, balance_cents=st.integers()), st.builds(Closed))
outcomes = st.builds(
    Outcome, st.text(), st.integers(min_value=0), st.none() | st.text(), st.none() | st.text(), st.text()
)


def test_a_row_is_readable_json() -> None:
    accepted = Outcome("c-1", 1, None, None, "f1")
    refused = Outcome("c-2", 1, "account.overpaid", "too much", "f2")
    row = DECIDER.initial_row.after(accepted, Closed(), 7).after(refused, Closed(), 9)
    assert CODEC.encode(row) == (
        b'{"sequence":1,"state":{"phase":"closed","balance_cents":0},'
        b'"outcomes":{"c-1":[1,"f1"],"c-2":[1,"f2","account.overpaid","too much"]},"offset":9}'
    )


@given(states, st.lists(st.tuples(outcomes, st.booleans())), st.integers(min_value=0))
def test_a_row_survives_the_table(state: Account, recent: list[tuple[Outcome, bool]], offset: int) -> None:
    row = DECIDER.initial_row
    for outcome, by_policy in recent:
        row = row.after(outcome, state, offset, by_policy=by_policy)
    assert CODEC.decode(CODEC.encode(row)) == CODEC.decode_whole(CODEC.encode(row)) == row
    assert CODEC.encode(CODEC.decode(CODEC.encode(row))) == CODEC.encode(row) == CODEC.encode_checked([row])[0]


@given(outcomes)
def test_an_outcome_is_recalled_as_it_was(outcome: Outcome) -> None:
    row = DECIDER.initial_row.after(outcome, Closed(), 0)
    recalled = row.outcome(outcome.command_id)
    assert recalled is not None
    assert recalled == (outcome if outcome.code is not None else structs.replace(outcome, detail=None))


def test_an_unknown_command_has_no_outcome() -> None:
    assert DECIDER.initial_row.outcome("c-1") is None


def test_only_the_latest_outcomes_are_kept() -> None:
    row: Row[Account] = DECIDER.initial_row
    for number in range(OUTCOMES_KEPT + 3):
        row = row.after(Outcome(f"c-{number}", number, None, None, ""), Closed(), number)
    assert list(row.outcomes) == [f"c-{number}" for number in range(3, OUTCOMES_KEPT + 3)]


def test_failures_and_decisions_do_not_displace_each_other() -> None:
    row: Row[Account] = DECIDER.initial_row
    for number in range(OUTCOMES_KEPT + 3):
        row = row.after(Outcome(f"c-{number}", number, None, None, ""), Closed(), number)
        row = row.after(Outcome(f"f-{number}", number, FAILED, None, ""), Closed(), number)
    kept = [f"{kind}-{number}" for kind in "fc" for number in range(3, OUTCOMES_KEPT + 3)]
    assert list(row.outcomes) == kept
    assert list(row.without("f-9").outcomes) == [each for each in kept if each != "f-9"]


def test_what_policies_send_displaces_no_outcome_of_a_caller() -> None:
    row: Row[Account] = DECIDER.initial_row.after(Outcome("caller", 1, None, None, "f"), Closed(), 0)
    for number in range(OUTCOMES_KEPT + 3):
        row = row.after(Outcome(f"p-{number}", number, None, None, ""), Closed(), number, by_policy=True)
    row = CODEC.decode_whole(CODEC.encode_checked([row])[0])
    assert row.outcome("caller") == Outcome("caller", 1, None, None, "f")
    assert [row.outcome(f"p-{number}") is None for number in range(4)] == [True, True, True, False]


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
