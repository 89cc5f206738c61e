"""What a release of a service can handle, as names to compare, and who of a group may own partitions. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from inspect import isclass
from typing import Any, Literal, get_args, get_origin

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo

from shared.domain.message import Message
from shared.engine.processors import Processor
from shared.engine.wiring import filled
from shared.topology.topics import IDEMPOTENCY_HOURS_MIN, Topology

Abilities = frozenset[str]

_SHOWN = 3
_FIELD = re.compile(r"(.+ v)(\d+) with .+")  # of a message in its newest version
_MEMORY = re.compile(r"commands are known for (\d+) h")


def abilities_of(topology: Topology, topics: Iterable[str], processors: Sequence[Processor]) -> Abilities:
    """The topics that its workers are given; what each processor reads, by type, version and field; the fields of the
    tables' rows, and whether rows end; for how long commands are known.

    They do not tell what a function does with a field, of what type a field is, or what the indexes are.
    """
    sources = {f"{each.name} reads {each.source.name}" for each in processors}
    reads = {f"{each.name} reads {name}" for each in processors for message in each.reads for name in _names(message)}
    rows = {
        f"rows of {table.name} have {path}"
        for table, codec in filled(processors).items()
        if table in topology.tables
        for path in _paths(codec.state_type)
    }
    ends = {f"rows of {table.name} end" for table in topology.tables if table.ends}
    ends |= {f"rows of {table.name} expire at {table.expires}" for table in topology.tables if table.expires}
    hours = topology.idempotency_hours
    known = {f"commands are known for {hours} h"} if hours > IDEMPOTENCY_HOURS_MIN else set[str]()
    return frozenset({*topics, *sources, *reads, *rows, *ends, *known})


def lacking(own: Abilities, others: Abilities) -> Abilities:
    """What others can handle, and we can't. Who reads a later version of a message also reads what earlier ones had,
    and who knows commands for longer also knows them for less.
    """
    return frozenset(each for each in others - own if not (_is_upcast(each, own) or _is_outlasted(each, own)))


def _is_upcast(ability: str, own: Abilities) -> bool:
    field = _FIELD.fullmatch(ability)
    return field is not None and f"{field[1]}{int(field[2]) + 1}" in own


def _is_outlasted(ability: str, own: Abilities) -> bool:
    return 0 < _hours(ability) <= max(map(_hours, own), default=0)


def _hours(ability: str) -> int:
    found = _MEMORY.fullmatch(ability)
    return int(found[1]) if found else 0


def chosen(members: Mapping[str, Abilities], held: Mapping[str, int]) -> Abilities:
    """What workers that get partitions can handle: all that those can which hold most, and all that any beside them
    can that can do as much. Who can do something else besides is to be refused.

    members: of the group. held: how many partitions each has had so far.
    """
    have, count = Counter[Abilities](), Counter(members.values())
    for member, abilities in members.items():
        have[abilities] += held[member]
    top, *others = sorted(count, key=lambda each: (-have[each], -count[each], sorted(each)))
    for each in others:
        if not lacking(each, top):
            top = each
    return top


def refusal(service: str, own: Abilities, top: Abilities) -> str:
    """What to tell a worker that can handle what the `chosen` can't, and not all that they can."""
    return (
        f"workers of another release are in the group: they can handle {shown(lacking(own, top))}, and this one can't; "
        f"it can handle {shown(lacking(top, own))}, and they can't; fix: release what is new first, and take away what "
        f"is to go with the next release; or stop all workers of {service}, then start those of this release"
    )


def shown(abilities: Abilities) -> str:
    """The first few of them."""
    first, more = sorted(abilities)[:_SHOWN], len(abilities) - _SHOWN
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _names(message: type[Message]) -> Iterator[str]:
    yield from (f"{message.TYPE} v{version}" for version in range(1, message.VERSION + 1))
    yield from (f"{message.TYPE} v{message.VERSION} with {path}" for path in _paths(message))


def _paths(type_: Any, at: str = "", inside: Set[Any] = frozenset()) -> Iterator[str]:
    """The names by which its fields are read, and the values of those that have few, such as phases."""
    if get_origin(type_) is Literal:
        yield from (f"{at}={value}" for value in get_args(type_))
    elif isclass(type_) and issubclass(type_, Enum):
        yield from (f"{at}={each.value}" for each in type_)
    elif isclass(type_) and issubclass(type_, BaseModel) and type_ not in inside:
        phase = [value for field in type_.model_fields.values() for value in _only(field.annotation)]
        for name, field in type_.model_fields.items():
            for read_by in _read_by(type_, name, field):
                path = ".".join(filter(None, [at, *phase, read_by]))
                yield path
                yield from _paths(field.annotation, path, inside | {type_})
    else:
        for part in get_args(type_):
            yield from _paths(part, at, inside)


def _only(annotation: Any) -> Sequence[str]:
    """The text that tells a phase from the others, if the field is of one."""
    values = get_args(annotation) if get_origin(annotation) is Literal else ()
    return values if len(values) == 1 and isinstance(values[0], str) else ()


def _read_by(model: type[BaseModel], name: str, field: FieldInfo) -> Iterator[str]:
    alias, config = field.validation_alias, model.model_config
    if alias is None or config.get("populate_by_name") or config.get("validate_by_name"):
        yield name
    for each in alias.choices if isinstance(alias, AliasChoices) else [alias]:
        if each is not None:
            yield ".".join(map(str, each.path)) if isinstance(each, AliasPath) else each
