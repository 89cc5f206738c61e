"""The audit of views, whose sources can hold what is in no row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from confluent_kafka import Producer

from pipelines import parity
from pipelines.catalog import table_of
from services.sales.domain.orders import Line, OrderConfirmed
from services.sales.domain.views import Totals
from shared.es.envelope import EventCodec
from shared.es.row import Row, RowCodec
from shared.kafka.history import History
from shared.kafka.producer import producer_config
from shared.kafka.provision import provision
from shared.parking import Parked, Wish
from shared.settings import Settings
from shared.topology import Table, Topic, Topology
from tests.pipelines.conftest import FIRST_DAY


def test_a_view_is_compared_up_to_what_is_parked_and_without_what_was_discarded(spark: Any, bootstrap: str) -> None:
    source = Topic("parkedviews.by-sku.v1")
    model = table_of("sales", "skus")
    topology = Topology("parkedviews", (source,), (Table("skus", source),), partitions=1)
    view = replace(model, topology=topology, table=topology.tables[0], events=source)
    provision([topology], Settings(bootstrap=bootstrap))

    def put(topic: str, key: str, value: bytes) -> None:
        producer.produce(topic, value, key.encode())

    producer = Producer(producer_config(bootstrap) | {"log_level": 0})
    for key, value in (
        ("waits", confirmed("waits")),
        ("waits", b"noise"),
        ("waits", confirmed("waits")),
        ("goes-on", b"noise"),
        ("goes-on", confirmed("goes-on")),
    ):
        put(source.name, key, value)
    once = Totals(orders=1, units=2, revenue_cents=2998)
    for key, offset in (("waits", 0), ("goes-on", 4)):
        put(view.changelog, key, view.row_codec.encode(Row(1, once, {}, offset)))
    place = {"processor": "skus", "topic": source.name, "partition": 0}
    parked = Parked(**place, offset=1, behind=(2,), code="message.bad", reason="not JSON", attempts=1)
    codec: RowCodec[Parked] = RowCodec(Parked)
    put(topology.changelog(topology.parked).name, "skus/0/waits", codec.encode(Row(2, parked, {}, 2)))
    wish = Wish(action="discard", id="skus/0/goes-on", offset=3)
    put(topology.parking.name, wish.id, wish.model_dump_json().encode())
    assert producer.flush(30) == 0

    verdict = parity.audit(spark, History(bootstrap), view)
    assert str(verdict) == "2 of 2 skus agree, 1 of them up to a parked record"


def confirmed(sku: str) -> bytes:
    codec: EventCodec[OrderConfirmed] = EventCodec([OrderConfirmed])
    line = Line(sku=sku, quantity=2, amount_cents=2998)
    order = OrderConfirmed(customer_id="ann", lines=(line,), placed_at=FIRST_DAY)
    return codec.encode(
        codec.wrap(order, event_id="e", aggregate_id="o", sequence=7, occurred_at=FIRST_DAY, correlation_id="c")
    )
