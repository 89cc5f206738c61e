"""The worker of accounts at its first release: a charge was in dollars then, and nobody had written an upcaster."""

import json
from typing import Any

from services.accounts.api import routes
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged
from services.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from shared.es.envelope import EventEnvelope
from shared.streams.processors import Aggregate
from shared.worker import service_app


class FirstAccounts(Aggregate):
    def __init__(self) -> None:
        super().__init__(DECIDER, table=ACCOUNTS, events=EVENTS)
        self._encode = encode


def encode(envelope: EventEnvelope[Any]) -> bytes:
    raw = DECIDER.event_codec.encode(envelope)
    if not isinstance(envelope.data, AccountCharged):
        return raw
    dollars, cents = divmod(envelope.data.amount_cents, 100)
    first = {"schema_version": 1, "data": {"amount": f"{dollars}.{cents:02d}"}}
    return json.dumps(json.loads(raw) | first).encode()


app = service_app(TOPOLOGY, [FirstAccounts()], routes)
