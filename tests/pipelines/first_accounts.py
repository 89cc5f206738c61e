"""The worker of accounts at its first release: charges were in dollars, and there was no upcaster yet."""

import json

from msgspec import structs

from services.accounts.api import routes
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged
from services.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor
from shared.service import worker_app
from shared.tables.rows import Rows
from shared.topology.records import SourceRecord


class FirstAccounts(AggregateProcessor):
    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        start = len(batch.records)
        super().handle(record, rows, batch)
        batch.records[start:] = [structs.replace(event, value=as_first(event.value)) for event in batch.records[start:]]


def as_first(event: bytes | None) -> bytes:
    fields = json.loads(event or b"")
    if fields["type"] == AccountCharged.TYPE:
        dollars, cents = divmod(fields["data"]["amount_cents"], 100)
        fields |= {"schema_version": 1, "data": {"amount": f"{dollars}.{cents:02d}"}}
    return json.dumps(fields).encode()


app = worker_app(TOPOLOGY, [FirstAccounts(DECIDER, table=ACCOUNTS, events=EVENTS)], routes)
