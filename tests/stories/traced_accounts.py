"""The worker of accounts with one of everything that handles a record, and a bug at charges of 13 cents."""

from dataclasses import replace

from shared.domain import EventEnvelope
from shared.service import service_app
from shared.topology import Policy, Projection, Rekey, Send, Table, Timer, Topic
from tests.accounts.api import routes
from tests.accounts.domain.commands import Charge
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.service import SERVICE
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.engine.failing_accounts import decide

TIMERS, COPIES = Topic("accounts.timers.v1"), Topic("accounts.copies.v1")
OPENED = Table("opened", source=EVENTS)
TRACED = replace(
    TOPOLOGY, topics=(COMMANDS, EVENTS, TIMERS, COPIES), tables=(*TOPOLOGY.tables, OPENED), partitions=2, history=None
)


def fee(event: EventEnvelope[AccountOpened]) -> list[Send]:
    """Some now, some later."""
    return [Send(topic, event.aggregate_id, Charge(amount_cents=1)) for topic in (COMMANDS, TIMERS)]


def count(opened: int, event: EventEnvelope[AccountOpened], key: str) -> int:
    return opened + 1


app = service_app(
    replace(
        SERVICE,
        topology=TRACED,
        decider=replace(DECIDER, decide=decide),
        projections=[Projection(OPENED, count, 0, (AccountOpened,), int)],
        policies=[Policy(fee, source=EVENTS, events=[AccountOpened], commands={COMMANDS: [Charge], TIMERS: [Charge]})],
        timers=[Timer(source=TIMERS, target=COMMANDS, delay_s=0.1)],
        rekeys=[Rekey({COPIES: lambda event: ["all"]}, source=EVENTS, events=[AccountOpened])],
    ),
    routes,
)
