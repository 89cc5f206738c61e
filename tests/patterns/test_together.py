"""The patterns that `new-service --kind` copies: one makes things, one follows them up, one counts them.

Of nicknames, test_unique.py shows what it is for; of errands, tests/effects.
"""

from __future__ import annotations

from typing import Any

import pytest

from shared.domain import Command, Decider
from shared.engine.wiring import processors_of
from shared.http.api import Routes, create_api
from shared.testing.conversation import Conversation
from shared.testing.node import MemoryNode
from shared.testing.scenario import NOON
from shared.topology import Service, Topic
from tests.patterns.errands.api import routes as errands_routes
from tests.patterns.errands.service import SERVICE as ERRANDS
from tests.patterns.followups import topology as followups
from tests.patterns.followups.api import routes as followups_routes
from tests.patterns.followups.domain.commands import FinishFollowup
from tests.patterns.followups.domain.decide import DECIDER as FOLLOWUP
from tests.patterns.followups.domain.state import Finished, Overdue
from tests.patterns.followups.service import SERVICE as FOLLOWUPS
from tests.patterns.nicknames.api import routes as nicknames_routes
from tests.patterns.nicknames.service import SERVICE as NICKNAMES
from tests.patterns.tallies.api import routes as tallies_routes
from tests.patterns.tallies.domain.views import Seen
from tests.patterns.tallies.service import SERVICE as TALLIES
from tests.patterns.things import topology as things
from tests.patterns.things.api import routes as things_routes
from tests.patterns.things.domain.commands import CreateThing
from tests.patterns.things.domain.decide import DECIDER as THING
from tests.patterns.things.domain.state import Open
from tests.patterns.things.service import SERVICE as THINGS

SERVICES: dict[str, tuple[Service, Routes]] = {
    "things": (THINGS, things_routes),
    "followups": (FOLLOWUPS, followups_routes),
    "tallies": (TALLIES, tallies_routes),
    "nicknames": (NICKNAMES, nicknames_routes),
    "errands": (ERRANDS, errands_routes),
}
PROCESSORS = [each for service, _ in SERVICES.values() for each in processors_of(service)]


def tell(talk: Conversation, topic: Topic, decider: Decider[Any, Any, Any], command: Command) -> dict[str, object]:
    """The states of t-1 by table, once everything is heard; a timer is due at once."""
    id_ = f"c-{command.TYPE}"
    envelope = decider.command_codec.wrap(command, command_id=id_, aggregate_id="t-1", issued_at=NOON)
    talk.say(topic, "t-1", decider.command_codec.encode(envelope))
    talk.run(lambda turns: turns[0])
    rows = {each.table.name: talk.row(each, "t-1") for each in PROCESSORS if each.table is not None}
    return {name: row.state for name, row in rows.items() if row is not None}


def test_what_is_created_is_followed_up_and_counted() -> None:
    talk = Conversation(PROCESSORS)
    thing, seen = Open(title="first"), Seen(times=1, last_at=NOON)
    states = tell(talk, things.COMMANDS, THING, CreateThing(title="first"))
    assert states == {"things": thing, "followups": Overdue(), "tallies": seen}
    states = tell(talk, followups.COMMANDS, FOLLOWUP, FinishFollowup())
    assert states == {"things": thing, "followups": Finished(), "tallies": seen}


def test_a_process_leaves_out_nothing_that_happens_before_its_first_worker_runs() -> None:
    policies = (*FOLLOWUPS.policies, *NICKNAMES.policies, *ERRANDS.policies)
    assert all(policy.from_start for policy in policies)


@pytest.mark.parametrize("name", SERVICES)
def test_routes_and_processors_fit_the_topology(name: str) -> None:
    service, routes = SERVICES[name]
    assert create_api(MemoryNode(service.topology, processors_of(service)), routes).openapi()["paths"]
