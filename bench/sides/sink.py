"""Rows into a database, as `sink run` writes them: `python -m bench.sides.sink TOPIC NAME`, with ONEFOLD_ settings."""

import sys

from sqlalchemy import BigInteger, Column, DateTime, Integer, String

from bench.domain import Sold
from bench.topology import engine_topology
from shared.domain.envelope import EventEnvelope
from shared.runtime.settings import load_settings
from shared.sinks.process import run
from shared.sinks.sink import Change, EventsOf, Sink, Upsert
from shared.topology.topics import Topic

EACH, LATEST = "each", "latest"


def row(customer: str, event: EventEnvelope[Sold]) -> tuple[Change]:
    return (
        Upsert(
            {
                "customer": customer,
                "sequence": event.sequence,
                "amount_cents": event.data.amount_cents,
                "sold_at": event.occurred_at,
            }
        ),
    )


def sink_of(topic: Topic, name: str) -> Sink:
    """EACH: a row for each event. LATEST: the customer's latest, which others replace."""
    columns = (
        Column("customer", String(255), primary_key=True),
        Column("sequence", Integer, primary_key=name == EACH),
        Column("amount_cents", BigInteger, nullable=False),
        Column("sold_at", DateTime(timezone=True), nullable=False),
    )
    return Sink(name, columns, EventsOf(topic, (Sold,)), row)


if __name__ == "__main__":
    source = Topic(sys.argv[1])
    run(engine_topology("bench", source), [sink_of(source, sys.argv[2])], load_settings())
