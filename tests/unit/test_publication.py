"""A public event is a contract of its own: made of an event, the same every time, and never the event itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from shared.domain.envelope import encode
from shared.domain.errors import UnknownType
from shared.domain.message import Event
from shared.domain.personal import Personal
from shared.engine.processors import PublicationProcessor
from shared.engine.wiring import by_source, lagging, processors_of, wired
from shared.testing.scenario import happened
from shared.topology.projection import Projection
from shared.topology.publication import Publication
from shared.topology.replay import replay_of
from shared.topology.topics import Table, Topic
from tests.accounts.domain.events import AccountCharged, AccountOpened
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.topology import EVENTS
from tests.engine.publishing_accounts import CHARGES, PUBLIC, PUBLISHING, WITH_PUBLIC, Charged
from tests.public_events import event_of

AT = datetime(1998, 3, 1, 9, 30, 0, 250_000, tzinfo=UTC)
CHARGED = happened(AccountCharged(amount_cents=250), aggregate_id="ann", sequence=2, occurred_at=AT)
HISTORICAL = encode(structs.replace(CHARGED, historical=True))


class Greeted(Event):
    TYPE = "account.greeted"


class Named(Event):
    TYPE = "account.named"

    holder: Personal = None


class Signed(Event):
    TYPE = "account.signed"

    by: tuple[Named, ...]


def publishing(**options: Any) -> Publication:
    usual: dict[str, Any] = {
        "publish": lambda _: Charged(cents=5),
        "source": EVENTS,
        "events": [AccountCharged],
        "topic": PUBLIC,
        "public": [Charged],
        "upcasters": UPCASTERS,
    }
    return Publication(**usual | options)


def test_a_public_event_is_a_cloudevent_about_the_aggregate_at_the_time_of_the_event() -> None:
    published = CHARGES.published(encode(CHARGED))
    assert published is not None
    event = event_of(published.headers, b"ann", published.body)
    assert (event.get_specversion(), event.get_source(), event.get_type()) == ("1.0", "/accounts", "account.charged.v1")
    assert (event.get_subject(), event.get_time(), event.get_data()) == ("ann", AT, {"cents": 250})


def test_a_replay_publishes_the_same_bytes_under_the_same_id() -> None:
    assert CHARGES.published(encode(CHARGED)) == CHARGES.published(encode(CHARGED))


def test_the_ids_of_two_events_and_of_two_topics_differ() -> None:
    later = encode(happened(AccountCharged(amount_cents=250), aggregate_id="ann", sequence=3, occurred_at=AT))
    beside = publishing(topic=Topic("accounts.public.v2"))
    found = [CHARGES.published(encode(CHARGED)), CHARGES.published(later), beside.published(encode(CHARGED))]
    assert len({dict(each.headers)["ce_id"] for each in found if each}) == 3


def test_what_the_function_leaves_out_is_not_published() -> None:
    assert CHARGES.published(encode(happened(AccountCharged(amount_cents=1)))) is None


def test_a_historical_event_is_published_only_if_asked_for() -> None:
    assert publishing().published(HISTORICAL) is None
    assert publishing(historical=True).published(HISTORICAL) == publishing().published(encode(CHARGED))


def test_it_passes_over_events_that_it_does_not_name() -> None:
    with pytest.raises(UnknownType):
        CHARGES.published(encode(happened(AccountOpened())))
    by_source(WITH_PUBLIC, found := processors_of(PUBLISHING))
    (processor,) = (each for each in found if isinstance(each, PublicationProcessor))
    assert processor.passes_over(AccountOpened.TYPE)
    assert not processor.passes_over("account.of_a_later_release")


def test_a_public_event_that_is_not_declared_is_refused() -> None:
    with pytest.raises(TypeError, match=r"publication.accounts.public.v1 publishes Greeted; fix: add it"):
        publishing(publish=lambda _: Greeted()).published(encode(CHARGED))


@pytest.mark.parametrize(
    ("public", "problem"),
    [
        (Named, "accounts.public.v1: Named.holder is personal, and nobody outside has the key"),
        (Signed, "Signed.by: what is personal in it would not be encrypted"),
        (
            AccountCharged,
            "accounts.public.v1: AccountCharged is an event of the domain, which could never",
        ),
    ],
)
def test_what_others_may_not_see_or_rely_on_is_refused_by_name(public: type[Event], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        publishing(public=[public])


@pytest.mark.parametrize("other", [{"source": Topic("stall.events.v1")}, {"topic": Topic("stall.public.v1")}])
def test_a_service_publishes_its_own_events_to_a_topic_of_its_own(other: dict[str, Topic]) -> None:
    (topic,) = other.values()
    with pytest.raises(ValueError, match=rf"{topic.name} is not its own; fix: declare it in topology.py"):
        replace(PUBLISHING, publications=[publishing(**other)])


def test_a_public_topic_is_known_by_its_name() -> None:
    """Of its kind: others may read it, and it is mirrored."""
    secret = Topic("accounts.secret.v1")
    service = replace(
        PUBLISHING,
        topology=replace(WITH_PUBLIC, topics=(*WITH_PUBLIC.topics, secret)),
        publications=[publishing(topic=secret)],
    )
    with pytest.raises(ValueError, match=r"accounts.secret.v1 holds public, .* fix: call it accounts.public.v1"):
        wired(service.topology, processors_of(service))


def test_one_topic_has_one_publication() -> None:
    twice = replace(PUBLISHING, publications=[CHARGES, publishing()])
    with pytest.raises(ValueError, match=r"called publication.accounts.public.v1; fix: .*one for each topic"):
        by_source(WITH_PUBLIC, processors_of(twice))


def test_a_view_that_is_computed_again_has_nothing_published_again() -> None:
    seen = Table("seen", source=EVENTS)
    view = Projection(seen, lambda n, *_: n + 1, initial=0, events=(AccountOpened,), state=int)
    topology = replace(WITH_PUBLIC, tables=(*WITH_PUBLIC.tables, seen))
    readers = processors_of(replace(PUBLISHING, topology=topology, projections=[view]))
    assert replay_of(topology, readers, "seen").passing == ((EVENTS, "publication.accounts.public.v1"),)


def test_events_that_are_only_published_may_lag() -> None:
    assert EVENTS.name in lagging(by_source(WITH_PUBLIC, wired(WITH_PUBLIC, processors_of(PUBLISHING))))
