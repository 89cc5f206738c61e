"""The rules of things, in sentences."""

import pytest

from shared.testing.scenario import Scenario
from tests.patterns.things.domain.commands import CloseThing, CreateThing, RenameThing, ThingCommand
from tests.patterns.things.domain.decide import DECIDER
from tests.patterns.things.domain.events import ThingClosed, ThingCreated, ThingRenamed

given = Scenario(DECIDER)

CREATED = ThingCreated(title="first")
CLOSED = ThingClosed()


def test_a_thing_is_created_once() -> None:
    given().when(CreateThing(title="first")).then(CREATED)
    given(CREATED).when(CreateThing(title="first")).then_refused("thing.already_created")


def test_an_open_thing_can_be_renamed() -> None:
    given(CREATED).when(RenameThing(title="second")).then(ThingRenamed(title="second"))
    given(CREATED).when(RenameThing(title="first")).then_nothing()


@pytest.mark.parametrize("title", ["", " "])
def test_a_title_can_be_seen(title: str) -> None:
    given().when(CreateThing(title=title)).then_refused("thing.no_title")
    given(CREATED).when(RenameThing(title=title)).then_refused("thing.no_title")


def test_a_closed_thing_stays_closed() -> None:
    given(CREATED).when(CloseThing()).then(CLOSED)
    given(CREATED, CLOSED).when(CloseThing()).then_nothing()
    given(CREATED, CLOSED).when(RenameThing(title="second")).then_refused("thing.closed")
    given(CREATED, CLOSED).when(CreateThing(title="first")).then_refused("thing.already_created")


@pytest.mark.parametrize("command", [RenameThing(title="second"), CloseThing()])
def test_what_was_never_created_is_unknown(command: ThingCommand) -> None:
    given().when(command).then_refused("thing.unknown")
