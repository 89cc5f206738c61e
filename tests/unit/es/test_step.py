"""One command, decided once."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import Field

from services.accounts.domain.commands import AccountCommand, Charge, CloseAccount, OpenAccount, Pay, SetLimits
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged, AccountEvent, AccountOpened
from services.accounts.domain.state import Account, Open
from shared.es.decider import fold
from shared.es.envelope import CommandEnvelope, EventEnvelope
from shared.es.errors import DomainError
from shared.es.ids import callers_id
from shared.es.message import Command, Part
from shared.es.row import OUTCOMES_KEPT, Outcome, Row
from shared.es.step import Step, fingerprint, step

ISSUED_AT = datetime(1997, 1, 12, 8, 30, tzinfo=UTC)

amounts = st.integers(min_value=-1, max_value=5)
commands = st.one_of(
    st.just(OpenAccount()),
    st.builds(Charge, amount_cents=amounts),
    st.builds(Pay, amount_cents=amounts),
    st.just(CloseAccount()),
)


def envelope(command: AccountCommand, command_id: str, **ids: str) -> CommandEnvelope[AccountCommand]:
    return DECIDER.command_codec.wrap(
        command, command_id=command_id, aggregate_id="customer-1", issued_at=ISSUED_AT, **ids
    )


def events_of(done: Step[Account]) -> list[EventEnvelope[AccountEvent]]:
    return [DECIDER.event_codec.decode(event) for event in done.events]


def run(envelopes: list[CommandEnvelope[AccountCommand]]) -> tuple[Row[Account], list[EventEnvelope[AccountEvent]]]:
    row = DECIDER.initial_row
    events: list[EventEnvelope[AccountEvent]] = []
    for offset, command in enumerate(envelopes):
        done = step(DECIDER, row, command, offset)
        row = done.row
        events += events_of(done)
    return row, events


def opened() -> Step[Account]:
    return step(DECIDER, DECIDER.initial_row, envelope(OpenAccount(), "c-1"), 0)


def test_an_accepted_command_yields_its_events_the_next_state_and_an_outcome() -> None:
    command = envelope(Charge(amount_cents=2999), "c-2", correlation_id="order-1")
    done = step(DECIDER, opened().row, command, 5)
    assert (done.row.sequence, done.row.state, done.row.offset) == (2, Open(balance_cents=2999), 5)
    assert done.outcome == Outcome("c-2", 2, None, None, fingerprint(command.data))
    assert done.row.outcome("c-2") == done.outcome
    [event] = events_of(done)
    assert event.data == AccountCharged(amount_cents=2999)
    assert (event.type, event.schema_version) == ("account.charged", 2)
    assert (event.aggregate_id, event.sequence, event.occurred_at) == ("customer-1", 2, ISSUED_AT)
    assert (event.correlation_id, event.causation_id) == ("order-1", "c-2")


def test_a_caller_can_not_use_up_the_id_of_a_policys_command() -> None:
    """It can be worked out from the event that the policy reacts to."""
    refused = step(DECIDER, opened().row, envelope(Charge(amount_cents=0), "worked-out"), 5)
    sent = envelope(Charge(amount_cents=7), "worked-out", causation_id="placed")
    done = step(DECIDER, refused.row, sent, 6)
    assert (done.repeated, done.row.state) == (False, Open(balance_cents=7))
    assert step(DECIDER, done.row, sent, 7).outcome == done.outcome
    assert step(DECIDER, done.row, sent, 7).repeated


def test_a_policys_command_that_an_earlier_release_kept_among_callers_is_not_decided_again() -> None:
    sent = envelope(Charge(amount_cents=7), "c-2", causation_id="placed")
    earlier = step(DECIDER, opened().row, envelope(Charge(amount_cents=7), "c-2"), 5)
    assert step(DECIDER, earlier.row, sent, 6).repeated


def test_a_callers_command_that_an_earlier_release_knew_by_its_bare_key_is_not_decided_again() -> None:
    sent = envelope(OpenAccount(), callers_id("ann", "c-1"), correlation_id="c-1")
    again = step(DECIDER, opened().row, sent, 5)
    assert again == Step(opened().row, (), structs.replace(opened().outcome, command_id=sent.command_id), repeated=True)


def test_a_callers_key_is_not_taken_for_the_id_of_a_policys_command() -> None:
    row = step(DECIDER, opened().row, envelope(Charge(amount_cents=7), "worked-out", causation_id="placed"), 5).row
    sent = envelope(Charge(amount_cents=7), callers_id("ann", "worked-out"), correlation_id="worked-out")
    assert step(DECIDER, row, sent, 6).row.state == Open(balance_cents=14)


def test_a_refused_command_is_an_outcome_without_events() -> None:
    done = step(DECIDER, opened().row, envelope(Charge(amount_cents=0), "c-2"), 5)
    assert (done.events, done.outcome.code, done.outcome.sequence) == ((), "account.amount_not_positive", 1)
    assert done.outcome.detail
    assert (done.row.state, done.row.offset) == (Open(balance_cents=0), 5)
    assert done.row.outcome("c-2") == done.outcome


def test_refusals_that_quote_their_commands_do_not_fill_the_row() -> None:
    """A row of more than 1 MiB would stop every worker that owns it."""

    class TooLong(DomainError):
        code = "account.too_long"

    def decide(command: AccountCommand, _: Account) -> list[AccountEvent]:
        raise TooLong(f"{command!r} is too long: {'ü' * 100_000}")

    row = DECIDER.initial_row
    for number in range(OUTCOMES_KEPT):
        row = step(replace(DECIDER, decide=decide), row, envelope(OpenAccount(), f"c-{number}"), number).row
    assert len(DECIDER.row_codec.encode(row)) < 100_000
    latest = row.outcome("c-0")
    assert latest is not None
    assert (latest.detail or "").startswith("OpenAccount(")


def test_a_repeated_command_gets_its_outcome_again_and_changes_nothing() -> None:
    first = opened()
    again = step(DECIDER, first.row, envelope(OpenAccount(), "c-1"), 8)
    assert again == Step(first.row, (), first.outcome, repeated=True)
    assert not first.repeated


def test_a_callers_command_is_known_after_any_number_of_those_that_policies_send() -> None:
    row = opened().row
    for number in range(2 * OUTCOMES_KEPT):
        sent = structs.replace(envelope(Charge(amount_cents=1), f"p-{number}"), causation_id="e-1")
        row = step(DECIDER, row, sent, 8 + number).row
        assert step(DECIDER, row, sent, 9 + number).repeated
    assert step(DECIDER, row, envelope(OpenAccount(), "c-1"), 200).repeated


def test_a_repeated_refusal_stays_refused_though_it_would_be_accepted_now() -> None:
    refused = step(DECIDER, DECIDER.initial_row, envelope(Charge(amount_cents=1), "c-1"), 0)
    now_open = step(DECIDER, refused.row, envelope(OpenAccount(), "c-2"), 1)
    again = step(DECIDER, now_open.row, envelope(Charge(amount_cents=1), "c-1"), 2)
    assert (again.repeated, again.outcome.code) == (True, "account.unknown")


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
    charges = [envelope(Charge(amount_cents=1), f"c-{number}") for number in range(2, OUTCOMES_KEPT + 3)]
    _, events = run([envelope(OpenAccount(), "c-1"), *charges, *charges])
    assert len({event.event_id for event in events}) == len(events) == 1 + 2 * len(charges)


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
def test_a_fingerprint_in_a_row_is_that_of_the_same_command_today(command: AccountCommand, digest: str) -> None:
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


@given(st.lists(st.tuples(commands, st.booleans()), max_size=OUTCOMES_KEPT // 2))
def test_the_same_command_twice_is_once(sent: list[tuple[AccountCommand, bool]]) -> None:
    once = [envelope(command, f"c-{number}") for number, (command, _) in enumerate(sent)]
    repeated = [each for each, (_, twice) in zip(once, sent, strict=True) for each in [each] * (1 + twice)]
    row, events = run(once)
    again, events_again = run(repeated + once)
    assert (again.sequence, again.state, again.outcomes) == (row.sequence, row.state, row.outcomes)
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
