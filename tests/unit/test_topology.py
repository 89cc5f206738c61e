import pytest

from shared.topology.topics import HOUR_MS, Table, Topic, Topology

EVENTS = Topic("accounts.events.v1")
COMMANDS = Topic("accounts.commands.v1")


def test_a_changelog_is_named_as_faust_names_it_and_compacted() -> None:
    table = Table("accounts", source=COMMANDS)
    topology = Topology("accounts", topics=(COMMANDS, EVENTS), tables=(table,))
    assert topology.changelog(table) == Topic("accounts-accounts-changelog", cleanup="compact")


def test_outcomes_of_commands_are_kept_longer_than_they_count() -> None:
    table = Table("accounts", source=COMMANDS)
    topology = Topology("accounts", (COMMANDS, EVENTS), (Table("totals", source=EVENTS), table), idempotency_hours=36)
    assert topology.outcomes == Table("accounts-outcomes", COMMANDS, keyed_by_id=False, kept_ms=36 * HOUR_MS)
    changelog = Topic("accounts-accounts-outcomes-changelog", "compact,delete", retention_ms=72 * HOUR_MS)
    assert topology.changelog(topology.outcomes) == changelog
    assert changelog in topology.all_topics()


def test_a_service_without_commands_keeps_no_outcomes() -> None:
    assert Topology("accounts", (EVENTS,), (Table("totals", source=EVENTS),)).outcomes is None


def test_outcomes_count_for_a_day_at_least() -> None:
    with pytest.raises(ValueError, match=r"^accounts: idempotency_hours=23: .*; fix: at least 24$"):
        Topology("accounts", (COMMANDS,), idempotency_hours=23)


def test_every_service_has_a_place_for_what_it_cannot_handle() -> None:
    topology = Topology("accounts", topics=(COMMANDS,))
    assert topology.all_topics() == (
        COMMANDS,
        Topic("accounts.dead.v1"),
        Topic("accounts.parking.v1"),
        Topic("accounts.routes.v1", cleanup="compact"),
        Topic("accounts-parked-changelog", cleanup="compact"),
    )


@pytest.mark.parametrize("name", ["", "Accounts.events.v1", "accounts_events.v1", "accounts events", ".", "a" * 250])
def test_an_illegal_name_is_refused_where_it_is_written(name: str) -> None:
    with pytest.raises(ValueError, match="not a legal name"):
        Topic(name)


def test_a_refused_name_says_what_is_legal() -> None:
    with pytest.raises(ValueError, match=r"'daily_sales'; fix: use only lower-case letters, digits, dots and hyphens"):
        Table("daily_sales", source=EVENTS)


@pytest.mark.parametrize("name", ["vouchers", "vouchers.events", "vouchers.v1", "vouchers.events.1", "a.b.events.v1"])
def test_a_topic_that_does_not_say_its_service_kind_and_version_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} .*; fix: name it `<service>\.<kind>\.v<major>`"):
        Topology("vouchers", topics=(Topic(name),))
    with pytest.raises(ValueError, match=r"<kind>"):
        assert Topic(name).kind


def test_a_topic_says_its_kind() -> None:
    assert [topic.kind for topic in (COMMANDS, Topic("sales.by-sku.v12"))] == ["commands", "by-sku"]


def test_a_topic_declared_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"declared more than once: \['accounts\.events\.v1'\]"):
        Topology("accounts", topics=(EVENTS, EVENTS))


@pytest.mark.parametrize("partitions", [0, 501])
def test_a_topology_has_one_partition_or_up_to_as_many_as_workers_can_name(partitions: int) -> None:
    with pytest.raises(ValueError, match=f"{partitions} partitions; fix: 1 to 500"):
        Topology("accounts", topics=(EVENTS,), partitions=partitions)


def test_the_next_version_has_changelogs_and_positions_of_its_own() -> None:
    events, table = Topic("shop.events.v1"), Table("items", source=Topic("shop.events.v1"))
    first, second = (Topology("shop", (events,), (table,), version=version) for version in (1, 2))
    assert (first.group, first.changelog(table).name) == ("shop", "shop-items-changelog")
    assert (second.group, second.changelog(table).name) == ("shop-v2", "shop-v2-items-changelog")
