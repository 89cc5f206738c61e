"""The AsyncAPI documents of the shop's services name the topics they write, and for which services."""

from __future__ import annotations

from shared.dev.asyncapi import document_of


def channels(service: str, action: str) -> set[str]:
    found = document_of(service)["operations"].values()
    return {each["channel"]["$ref"].removeprefix("#/channels/") for each in found if each["action"] == action}


def test_a_process_sends_commands_to_other_services_and_to_itself() -> None:
    facts = {"accounts.events.v1", "inventory.events.v1", "orders.events.v1"}
    assert channels("orders", "receive") == facts | {"orders.commands.v1", "orders.timers.v1"}
    own = {"orders.commands.v1", "orders.events.v1", "orders.timers.v1", "orders.dead.v1", "orders.public.v1"}
    assert channels("orders", "send") == own | {f"{each}.commands.v1" for each in ("accounts", "inventory", "pickups")}


def test_the_commands_that_a_process_sends_are_listed_by_topic() -> None:
    found = document_of("orders")["channels"]
    assert found["inventory.commands.v1"]["messages"].keys() == {"stock.reserve", "stock.release", "stock.ship"}
    assert found["orders.timers.v1"]["messages"].keys() == {"order.check_deadline"}


def test_copies_under_other_keys_are_listed_too() -> None:
    copies = {f"sales.by-{key}.v1" for key in ("customer", "day", "hour", "line", "sku")}
    assert channels("sales", "send") == copies | {"sales.names.v1", "sales.dead.v1"}
