"""A service re-declares the foreign messages it uses; each is checked against its owner's golden records."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from shared.dev.compatibility import changes
from shared.domain.decider import Decider
from shared.domain.message import Command, Event, Message
from shared.runtime.checkout import CHECKOUT, found_services
from shared.testing.scenario import happened
from shared.topology.policy import Policy
from shared.topology.projection import Projection
from tests.accounts.domain.decide import DECIDER as ACCOUNTS
from tests.accounts.domain.events import AccountCharged

RECORDS = {path.stem: path for path in CHECKOUT.glob("tests/unit/*/golden/*.json")}


def declared(service: str, *modules: str, room: str = "domain") -> Iterator[type[Message]]:
    for path in sorted((CHECKOUT / "services" / service / room).glob("*.py")):
        if not modules or path.stem in modules:
            yield from messages_of(importlib.import_module(f"services.{service}.{room}.{path.stem}"))


def messages_of(module: ModuleType) -> list[type[Message]]:
    """Those that it declares, each once, whatever other names it gives them."""
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Message))
    return [*dict.fromkeys(kind for kind in kinds if kind.__module__ == module.__name__)]


def made(service: str) -> list[type[Message]]:
    """Those that `effect_service` has made for it."""
    decider = importlib.import_module(f"services.{service}.service").SERVICE.decider
    found = (*decider.commands, *decider.events) if decider else ()
    return [kind for kind in found if not kind.__module__.startswith("services.")]


SERVICES = found_services(having="service.py")
OWN = {kind: service for service in SERVICES for kind in (*declared(service, "commands", "events"), *made(service))}
FOREIGN = [kind for service in SERVICES for kind in declared(service, room="contracts")]


def owner_of(foreign: type[Message]) -> type[Message]:
    owners = [kind for kind in OWN if kind.TYPE == foreign.TYPE]
    assert owners, f"no service has a {foreign.TYPE}; fix: correct the TYPE of {foreign.__qualname__}"
    return owners[0]


def data_of(message: type[Message]) -> str:
    """That of the golden record of its current version."""
    return json.dumps(json.loads(RECORDS[f"{message.TYPE}.v{message.VERSION}"].read_bytes())["data"])


def named(message: type[Message]) -> str:
    return f"{message.__module__.split('.')[1]}-{message.TYPE}"


def test_a_domain_declares_no_message_of_a_neighbour() -> None:
    """It lies in contracts/, where it is compared with its owner's."""
    assert [kind for service in SERVICES for kind in declared(service) if kind not in OWN] == []


@pytest.mark.parametrize("foreign", FOREIGN, ids=named)
def test_a_contract_is_called_after_the_service_that_owns_the_message(foreign: type[Message]) -> None:
    owner = owner_of(foreign)
    assert foreign.__module__.split(".")[2:] == ["contracts", OWN[owner]]


def test_the_only_command_of_a_service_may_have_a_second_name() -> None:
    """Such as `SeatCommand = SellSeat`, in the place of a union."""
    module = ModuleType(__name__)
    sell = type("SellSeat", (Command,), {"TYPE": "seat.sell", "__module__": __name__})
    vars(module).update(SellSeat=sell, SeatCommand=sell)
    assert [kind.TYPE for kind in messages_of(module)] == ["seat.sell"]


def test_no_two_services_that_decide_have_a_message_of_the_same_type() -> None:
    """Services of views may read the same facts of a pipeline."""
    deciding = [service for service in SERVICES if [*declared(service, "commands")] or made(service)]
    types = Counter(kind.TYPE for kind, service in OWN.items() if service in deciding)
    assert [name for name, times in types.items() if times > 1] == []


@pytest.mark.parametrize("foreign", [kind for kind in FOREIGN if issubclass(kind, Event)], ids=named)
def test_a_foreign_event_is_what_its_owner_writes(foreign: type[Event]) -> None:
    owner = owner_of(foreign)
    assert foreign.VERSION == owner.VERSION
    assert foreign.model_fields.keys() <= owner.model_fields.keys()
    foreign.model_validate_json(data_of(owner))
    assert [each for each in changes(owner.model_json_schema(), foreign.model_json_schema()) if not each.backward] == []


def means_the_same(foreign: type[Event], record: bytes, owner: Decider[Any, Any, Any]) -> bool:
    """Whether its owner has changed nothing since that record's version that it uses, in name or meaning."""
    upcast = owner.event_codec.decode(record).data.model_dump_json()
    with suppress(ValidationError):
        written = json.dumps(json.loads(record)["data"])
        return foreign.model_validate_json(written) == foreign.model_validate_json(upcast)
    return False


@pytest.mark.parametrize("foreign", [kind for kind in FOREIGN if issubclass(kind, Event)], ids=named)
def test_a_foreign_event_is_the_same_since_the_version_that_it_says(foreign: type[Event]) -> None:
    owner = owner_of(foreign)
    decider = importlib.import_module(f"services.{OWN[owner]}.service").SERVICE.decider
    records = {each: RECORDS[f"{foreign.TYPE}.v{each}"] for each in range(foreign.same_since(), owner.VERSION)}
    assert [each for each, path in records.items() if not means_the_same(foreign, path.read_bytes(), decider)] == []


def test_a_field_that_was_changed_is_not_the_same() -> None:
    class Charged(Event):
        TYPE = AccountCharged.TYPE
        VERSION = AccountCharged.VERSION

    class InCents(Charged):
        amount_cents: int

    now = json.loads(ACCOUNTS.event_codec.encode(happened(AccountCharged(amount_cents=150))))
    record = json.dumps(now | {"schema_version": 1, "data": {"amount": "1.50"}}).encode()
    assert [means_the_same(kind, record, ACCOUNTS) for kind in (Charged, InCents)] == [True, False]


@pytest.mark.parametrize("foreign", [kind for kind in FOREIGN if issubclass(kind, Command)], ids=named)
def test_a_foreign_command_is_what_its_owner_reads(foreign: type[Command]) -> None:
    owner = owner_of(foreign)
    assert foreign.VERSION == owner.VERSION
    written = foreign.model_validate_json(data_of(owner)).model_dump_json()
    assert owner.model_validate_json(written) == owner.model_validate_json(data_of(owner))


def readers(module: str, name: str) -> list[Any]:
    services = [each for each in SERVICES if (CHECKOUT / "services" / each / f"{module}.py").exists()]
    modules = [importlib.import_module(f"services.{each}.{module}") for each in services]
    return [reader for each in modules for reader in getattr(each, name, ())]


def versions(types: Iterable[str]) -> list[bytes]:
    """The golden records of all versions of each type."""
    found = {type_: [path for name, path in RECORDS.items() if name.rpartition(".v")[0] == type_] for type_ in types}
    assert all(found.values()), f"a type without a golden record: {found}"
    return [path.read_bytes() for paths in found.values() for path in paths]


@pytest.mark.parametrize(
    "projection", readers("projections", "PROJECTIONS"), ids=lambda projection: projection.table.name
)
def test_a_view_reads_every_version_of_its_events(projection: Projection[Any, Any]) -> None:
    for record in versions({event.TYPE for event in projection.events}):
        projection.event_codec.decode(record)


@pytest.mark.parametrize("policy", readers("policies", "POLICIES"), ids=lambda policy: policy.react.__name__)
def test_a_policy_answers_every_version_of_its_events(policy: Policy) -> None:
    for record in versions(policy._types):
        assert all(sent.command_id for sent in policy.sends(record))
