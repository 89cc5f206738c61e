"""One command, decided once."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import Field

from shared.domain.decider import fold
from shared.domain.envelope import CommandEnvelope, EventEnvelope
from shared.domain.errors import DETAIL_MAX_CHARS, DomainError
from shared.domain.message import Command, Part
from shared.domain.row import Outcome, Row
from shared.domain.step import Step, fingerprint, step
from shared.testing.scenario import NOON, Scenario
from tests.accounts.domain.commands import AccountCommand, Charge, CloseAccount, OpenAccount, Pay
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountCharged, AccountEvent, AccountOpened
from tests.accounts.domain.state import Account, Open

ISSUED_AT = datetime(1997, 1, 12, 8, 30, tzinfo=UTC)

amounts = st.integers(min_value=-1, max_value=5)
commands = st.one_of(
    st.just(OpenAccount()),
    st.builds(Charge, amount_cents=amounts),
    st.builds(Pay, amount_cents=amounts),
    st.just(CloseAccount()),
)


def envelope(
    command: AccountCommand, command_id: str, expected_sequence: int | None = None, **ids: str
) -> CommandEnvelope[AccountCommand]:
    return DECIDER.command_codec.wrap(
        command,
        command_id=command_id,
        aggregate_id="customer-1",
        issued_at=ISSUED_AT,
        expected_sequence=expected_sequence,
        **ids,
    )


def events_of(done: Step[Account]) -> list[EventEnvelope[AccountEvent]]:
    return [DECIDER.event_codec.decode(event) for event in done.events]


def run(envelopes: list[CommandEnvelope[AccountCommand]]) -> tuple[Row[Account], list[EventEnvelope[AccountEvent]]]:
    row = DECIDER.initial_row
    events: list[EventEnvelope[AccountEvent]] = []
    outcomes: dict[str, Outcome] = {}
    for offset, command in enumerate(envelopes):
        done = step(DECIDER, row, command, offset, outcomes.get(command.command_id))
        row, outcomes[command.command_id] = done.row, done.outcome
        events += events_of(done)
    return row, events


def opened() -> Step[Account]:
    return step(DECIDER, DECIDER.initial_row, envelope(OpenAccount(), "c-1"), 0)


def test_an_accepted_command_yields_its_events_the_next_state_and_an_outcome() -> None:
    command = envelope(Charge(amount_cents=2999), "c-2", correlation_id="order-1")
    done = step(DECIDER, opened().row, command, 5)
    assert (done.row.sequence, done.row.state, done.row.offset) == (2, Open(balance_cents=2999), 5)
    assert done.outcome == Outcome("c-2", 2, None, None, fingerprint(command.data))
    [event] = events_of(done)
    assert event.data == AccountCharged(amount_cents=2999)
    assert (event.type, event.schema_version) == ("account.charged", 2)
    assert (event.aggregate_id, event.sequence, event.occurred_at) == ("customer-1", 2, ISSUED_AT)
    assert (event.correlation_id, event.causation_id) == ("order-1", "c-2")


def test_a_refused_command_is_an_outcome_without_events() -> None:
    done = step(DECIDER, opened().row, envelope(Charge(amount_cents=0), "c-2"), 5)
    assert (done.events, done.outcome.code, done.outcome.sequence) == ((), "account.amount_not_positive", 1)
    assert done.outcome.detail
    assert (done.row.state, done.row.offset) == (Open(balance_cents=0), 5)


def test_a_refusal_that_quotes_its_command_is_cut_and_can_be_written() -> None:
    class TooLong(DomainError):
        code = "account.too_long"

    def decide(command: AccountCommand, _: Account) -> list[AccountEvent]:
        raise TooLong(f"{command!r} is \ud800 too long: {'ü' * 100_000}")

    outcome = step(replace(DECIDER, decide=decide), DECIDER.initial_row, envelope(OpenAccount(), "c-1"), 0).outcome
    assert (outcome.detail or "").startswith("OpenAccount(")
    assert len((outcome.detail or "").encode()) < 2 * DETAIL_MAX_CHARS


def test_a_repeated_command_gets_its_outcome_again_and_changes_nothing() -> None:
    first = opened()
    again = step(DECIDER, first.row, envelope(OpenAccount(), "c-1"), 8, first.outcome)
    assert again == Step(first.row, (), first.outcome, repeated=True)
    assert not first.repeated


def test_a_repeated_refusal_stays_refused_though_it_would_be_accepted_now() -> None:
    refused = step(DECIDER, DECIDER.initial_row, envelope(Charge(amount_cents=1), "c-1"), 0)
    now_open = step(DECIDER, refused.row, envelope(OpenAccount(), "c-2"), 1)
    again = step(DECIDER, now_open.row, envelope(Charge(amount_cents=1), "c-1"), 2, refused.outcome)
    assert (again.repeated, again.outcome.code) == (True, "account.unknown")


def test_a_command_for_another_sequence_is_refused_whatever_the_domain_would_say_of_it() -> None:
    for command, expected in ((Charge(amount_cents=1), 0), (Charge(amount_cents=1), 2), (OpenAccount(), 0)):
        done = step(DECIDER, opened().row, envelope(command, "c-2", expected), 5)
        assert (done.events, done.outcome.code, done.outcome.sequence) == ((), "sequence.mismatch", 1)
        assert done.outcome.detail == f"customer-1 is at sequence 1, and the command was meant for {expected}"
        assert (done.row.state, done.row.offset) == (Open(), 5)


def test_a_command_for_this_sequence_is_decided_as_any_other() -> None:
    first = step(DECIDER, DECIDER.initial_row, envelope(OpenAccount(), "c-1", 0), 0)
    assert (first.row, first.events) == (opened().row, opened().events)
    refused = step(DECIDER, first.row, envelope(Charge(amount_cents=0), "c-2", 1), 5)
    assert refused.outcome.code == "account.amount_not_positive"


def test_a_command_with_another_expectation_is_no_repeat() -> None:
    charge = Charge(amount_cents=1)
    assert len({fingerprint(charge), fingerprint(charge, 0), fingerprint(charge, 1)}) == 3


@given(st.lists(st.tuples(commands, st.none() | st.integers(0, 6)), max_size=30))
def test_of_the_commands_that_expect_a_sequence_only_those_that_find_it_have_an_effect(
    sent: list[tuple[AccountCommand, int | None]],
) -> None:
    row = DECIDER.initial_row
    for number, (command, expected) in enumerate(sent):
        before, done = row, step(DECIDER, row, envelope(command, f"c-{number}", expected), number)
        row = done.row
        assert (done.outcome.code == "sequence.mismatch") == (expected not in (None, before.sequence))
        assert row.sequence - before.sequence == len(done.events)


def test_a_command_that_finds_it_already_so_is_accepted_without_events() -> None:
    agreeable = replace(DECIDER, decide=lambda _command, _account: [])
    done = step(agreeable, DECIDER.initial_row, envelope(OpenAccount(), "c-1"), 0)
    assert (done.events, done.outcome.code, done.outcome.sequence) == ((), None, 0)


def test_events_of_one_command_are_numbered_on_and_named_apart() -> None:
    eager = replace(DECIDER, decide=lambda _command, _account: [AccountOpened(), AccountCharged(amount_cents=1)])
    done = step(eager, DECIDER.initial_row, envelope(OpenAccount(), "c-1"), 0)
    events = events_of(done)
    assert [event.sequence for event in events] == [1, 2]
    assert len({event.event_id for event in events}) == 2
    assert done.outcome.sequence == done.row.sequence == 2


def test_events_of_a_command_that_was_forgotten_and_decided_again_are_others() -> None:
    charge = envelope(Charge(amount_cents=1), "c-2")
    first = step(DECIDER, opened().row, charge, 1)
    again = step(DECIDER, first.row, charge, 2)
    assert len({event.event_id for event in events_of(first) + events_of(again)}) == 2


def test_one_command_id_for_two_aggregates_gives_events_of_their_own() -> None:
    elsewhere = structs.replace(envelope(OpenAccount(), "c-1"), aggregate_id="customer-2")
    done = step(DECIDER, DECIDER.initial_row, elsewhere, 0)
    assert events_of(done)[0].event_id != events_of(opened())[0].event_id


def test_a_fingerprint_tells_bodies_and_types_apart() -> None:
    same = {fingerprint(Charge(amount_cents=1)), fingerprint(Charge(amount_cents=1))}
    different = {fingerprint(Charge(amount_cents=2)), fingerprint(Pay(amount_cents=1)), fingerprint(OpenAccount())}
    assert len(same) == 1
    assert len(same | different) == 4


def test_a_command_sent_again_after_a_release_with_a_new_optional_field_is_a_repeat() -> None:
    class LaterCharge(Charge):
        note: str | None = None
        gift: bool = False

    assert fingerprint(LaterCharge(amount_cents=1)) == fingerprint(Charge(amount_cents=1))
    assert fingerprint(LaterCharge(amount_cents=1, gift=True)) != fingerprint(Charge(amount_cents=1))


def test_a_rule_about_the_id_comes_before_the_others_and_refuses_with_its_code() -> None:
    class NotThere(DomainError):
        code = "account.not_there"

    def check_id(account_id: str, _command: AccountCommand) -> None:
        if not account_id.startswith("customer-"):
            raise NotThere(f"{account_id} is no customer")

    decider = replace(DECIDER, check_id=check_id)
    for account_id, code in (("ann", "account.not_there"), ("customer-1", None)):
        command = DECIDER.command_codec.wrap(OpenAccount(), command_id="c-1", aggregate_id=account_id, issued_at=NOON)
        assert step(decider, decider.initial_row, command, 0).outcome.code == code
    given = Scenario(decider)
    given().when(OpenAccount(), aggregate_id="ann").then_refused("account.not_there")
    given().when(OpenAccount(), aggregate_id="customer-1").then(AccountOpened())


class SetLimits(Command):
    TYPE = "account.set_limits"

    order_limit_cents: int | None
    credit_limit_cents: int | None


@pytest.mark.parametrize(
    ("command", "digest"),
    [
        (OpenAccount(), "c382bc20752eebe0"),
        (OpenAccount(order_limit_cents=5), "379d8b64b10ccdf1"),
        (SetLimits(order_limit_cents=1, credit_limit_cents=None), "14f85fef6aaa8c73"),
        (Charge(amount_cents=2999), "bdb4e6270320ca04"),
        (CloseAccount(), "82c45d08211d5653"),
    ],
)
def test_a_fingerprint_in_a_row_is_that_of_the_same_command_today(command: Command, digest: str) -> None:
    assert fingerprint(command) == digest


class Card(Part):
    kind: Literal["card"] = "card"
    cents: int = 0


class Cash(Part):
    kind: Literal["cash"] = "cash"
    cents: int = 0


How = Annotated[Card | Cash, Field(discriminator="kind")]


class Settle(Command):
    TYPE = "bill.settle"

    how: How = Card()
    parts: tuple[How, ...] = ()
    tip: int | bool = 0
    rate: float = 0
    notes: list[str] = Field(default_factory=list)
    total: int = Field(default_factory=lambda fields: len(fields["parts"]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Settle(how=Card(cents=1)), Settle(how=Cash(cents=1))),
        (Settle(parts=(Card(),)), Settle(parts=(Cash(),))),
        (Settle(how=Cash()), Settle()),
        (Settle(tip=False), Settle(tip=0)),
        (Settle(tip=True), Settle(tip=1)),
    ],
)
def test_commands_of_equal_numbers_or_defaults_are_told_apart(one: Settle, other: Settle) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_default_that_was_sent_and_one_that_was_left_out_are_the_same() -> None:
    sent = Settle(how=Card(), parts=(), tip=0, rate=0.0, notes=[], total=0)
    assert fingerprint(sent) == fingerprint(Settle())


@given(st.lists(st.tuples(commands, st.booleans())))
def test_the_same_command_twice_is_once(sent: list[tuple[AccountCommand, bool]]) -> None:
    once = [envelope(command, f"c-{number}") for number, (command, _) in enumerate(sent)]
    repeated = [each for each, (_, twice) in zip(once, sent, strict=True) for each in [each] * (1 + twice)]
    row, events = run(once)
    again, events_again = run(repeated + once)
    assert (again.sequence, again.state) == (row.sequence, row.state)
    assert events_again == events


@given(st.lists(commands))
def test_a_replay_computes_the_same(sent: list[AccountCommand]) -> None:
    envelopes = [envelope(command, f"c-{number}") for number, command in enumerate(sent)]
    assert run(envelopes) == run(envelopes)


@given(st.lists(commands))
def test_the_row_is_the_fold_of_its_events_numbered_without_a_gap(sent: list[AccountCommand]) -> None:
    row, events = run([envelope(command, f"c-{number}") for number, command in enumerate(sent)])
    assert row.state == fold(DECIDER.evolve, [event.data for event in events], DECIDER.initial)
    assert [event.sequence for event in events] == list(range(1, row.sequence + 1))
    assert len({event.event_id for event in events}) == len(events)


@given(st.lists(commands))
def test_a_row_through_the_table_decides_the_same(sent: list[AccountCommand]) -> None:
    row, codec = DECIDER.initial_row, DECIDER.row_codec
    for number, command in enumerate(sent):
        asked = envelope(command, f"c-{number}")
        done = step(DECIDER, row, asked, number)
        assert step(DECIDER, codec.decode(codec.encode(row)), asked, number) == done
        row = done.row
