"""The worker of accounts that also publishes what was charged."""

from dataclasses import replace

from shared.domain.envelope import EventEnvelope
from shared.domain.message import Event
from shared.service import service_app
from shared.topology.publication import Publication
from shared.topology.topics import Topic
from tests.accounts.domain.events import AccountCharged
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.service import SERVICE
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY


class Charged(Event):
    TYPE = "account.charged"

    cents: int


def publish(event: EventEnvelope[AccountCharged]) -> Charged | None:
    """Small change is nobody else's business."""
    return Charged(cents=event.data.amount_cents) if event.data.amount_cents > 1 else None


PUBLIC = Topic("accounts.public.v1")
WITH_PUBLIC = replace(TOPOLOGY, topics=(COMMANDS, EVENTS, PUBLIC), partitions=2)
CHARGES = Publication(
    publish, source=EVENTS, events=[AccountCharged], topic=PUBLIC, public=[Charged], upcasters=UPCASTERS
)
PUBLISHING = replace(SERVICE, topology=WITH_PUBLIC, publications=[CHARGES])

app = service_app(PUBLISHING, lambda *_: [])
