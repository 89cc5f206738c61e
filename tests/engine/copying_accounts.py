"""The worker of accounts that also copies what was opened to another topic, without a row that remembers it."""

from dataclasses import replace

from shared.service import service_app
from shared.topology.rekey import Rekey
from shared.topology.topics import Topic
from tests.accounts.domain.events import AccountOpened
from tests.accounts.service import SERVICE
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY

COPIED = Topic("accounts.copies.v1")
WITH_COPIES = replace(TOPOLOGY, topics=(COMMANDS, EVENTS, COPIED), partitions=2, history=None)
COPIES = Rekey({COPIED: lambda event: [event.aggregate_id]}, source=EVENTS, events=[AccountOpened])

app = service_app(replace(SERVICE, topology=WITH_COPIES, rekeys=[COPIES]), lambda *_: [])
