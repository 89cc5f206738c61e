"""What a change of messages or states means for those that read them, in Avro's words: a judgement of two documents.

A document has, by kind (`commands`, `events`, `states`, `public`) and name, an entry: its version, the older versions
that it is upcast from, and its JSON schema, by `schemas.schema_of`. What a validator of one's own refuses is in no
schema, and what `evolve` makes of an event is not either: golden records and `parity` tell that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from shared.domain.personal import IN_SCHEMA

Json = Mapping[str, Any]

COMMANDS, EVENTS, STATES, PUBLIC = KINDS = ("commands", "events", "states", "public")
COMPATIBLE, BACKWARD, FORWARD, BREAKING = "compatible", "backward", "forward", "breaking"

READ_BY = "x-read-by"
"""In the schema of a field, the names that it is read by, if not only by the one that it is written by."""

_NEW_VERSION = (
    "not as it is: the log keeps what was written before; give a new field a default, keep what was there, or "
)
_AT_ONCE = (
    "consumers first, on every worker, then producers: an older worker parks what it does not know. This service's own "
    "workers, one by one: beside newer ones the older own nothing; once these are gone again, they park it"
)
_ANEW = (
    "not as it is: rows are parked as row.unreadable, or read otherwise; raise `version` in topology.py, then "
    "`deploy SERVICE`, or `rebuild SERVICE`. Of a view alone, stop all workers, `reprocess SERVICE/TABLE`, and accept "
    "with --breaking"
)
_BESIDE = (
    "not as it is: other teams read it, in their own time; publish it under the next VERSION to a topic of its own, "
    "`….public.v2`, beside this one until nobody reads it"
)
_ORDER = {
    (COMMANDS, COMPATIBLE): "in any order",
    (COMMANDS, BACKWARD): _AT_ONCE,
    (COMMANDS, FORWARD): (
        "producers first: clients and other services send it so that both releases read it; when nothing waits any "
        "more (`status`), this service"
    ),
    (COMMANDS, BREAKING): f"{_NEW_VERSION}give the command its next VERSION and an upcaster",
    (EVENTS, COMPATIBLE): (
        "in any order; consumers first, if they need a new field from the first event on: without it they ignore it, "
        "and their views lack it until they are computed again"
    ),
    (EVENTS, BACKWARD): f"{_AT_ONCE}. Other services pass over a type that they do not know",
    (EVENTS, FORWARD): f"{_NEW_VERSION}give the event its next VERSION and an upcaster",
    (EVENTS, BREAKING): f"{_NEW_VERSION}give the event its next VERSION and an upcaster",
    (PUBLIC, COMPATIBLE): "in any order",
    (PUBLIC, BACKWARD): _BESIDE,
    (PUBLIC, FORWARD): _BESIDE,
    (PUBLIC, BREAKING): _BESIDE,
    (STATES, COMPATIBLE): "in any order",
    (STATES, BACKWARD): (
        "one by one: beside newer workers the older own nothing; once these are gone again, they park the keys of rows "
        "with it (row.unreadable). Rows that exist have the default, whatever past events say. If that is not meant, "
        "raise `version` in topology.py, then `deploy SERVICE`; of a view alone, `reprocess SERVICE/TABLE`"
    ),
    (STATES, FORWARD): _ANEW,
    (STATES, BREAKING): _ANEW,
}
_GONE = {
    COMMANDS: (False, True),  # it is no longer sent
    EVENTS: (False, False),
    STATES: (False, False),
    PUBLIC: (False, False),
}
_WHY_GONE = {
    EVENTS: "not as it is: keep its class and its fold, as the log has it for ever",
    STATES: (
        "not as it is: a table of another name has no rows, and an aggregate would begin again; give it the name that "
        "it had. A view that nobody reads may go: accept with --breaking, and delete its changelog"
    ),
}
_NEW_TABLE = (
    "`provision`, then one by one: beside newer workers the older own nothing. A view lacks what was read before: "
    "`reprocess SERVICE/TABLE`"
)
_REBUILT = (
    "beside the former version: `deploy SERVICE`, `compare`, `switch`; or stop all workers, `rebuild SERVICE`, then "
    "start those of the new release"
)


@dataclass(frozen=True, slots=True)
class Change:
    """backward: the new release reads what the old one wrote. forward: the other way. release: in which order, or why
    not. field: its path, such as `lines[].sku`; empty for all of it.
    """

    kind: str
    name: str
    field: str
    what: str
    backward: bool
    forward: bool
    release: str = ""

    @property
    def verdict(self) -> str:
        return _verdict(self.backward, self.forward)

    @property
    def order(self) -> str:
        return self.release or _ORDER[self.kind, self.verdict]

    @property
    def refused(self) -> bool:
        """Whether no order of release makes it safe: nobody orders those of other teams."""
        if self.kind == PUBLIC:
            return self.verdict != COMPATIBLE
        return not self.backward and not (self.kind == COMMANDS and self.forward)

    def __str__(self) -> str:
        field = f", {self.field}" if self.field else ""
        return f"{self.verdict:<10}  {self.kind.removesuffix('s')} {self.name}{field}: {self.what}"


class Found(NamedTuple):
    """A change inside a schema; see `Change`."""

    field: str
    what: str
    backward: bool
    forward: bool


def judged(old: Json, new: Json) -> list[Change]:
    """Every change from one document to the other."""
    return [change for kind in KINDS for change in _of_kind(kind, old.get(kind, {}), new.get(kind, {}))]


def _of_kind(kind: str, old: Json, new: Json) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield Change(kind, name, "", "is new", True, kind == PUBLIC, _NEW_TABLE if kind == STATES else "")
        elif name not in new:
            yield Change(kind, name, "", "is gone", *_GONE[kind], _WHY_GONE.get(kind, ""))
        else:
            yield from _of_one(kind, name, old[name], new[name])


def _of_one(kind: str, name: str, old: Json, new: Json) -> Iterator[Change]:
    before, after = old["version"], new["version"]
    found = changes(old["schema"], new["schema"], closed=kind == STATES)
    if after == before:
        for each in found:
            yield Change(kind, name, *each)
        return
    what, fields = f"version {before} became {after}", "".join(f"; {each.field} {each.what}" for each in found)
    missing = [version for version in range(before, after) if version not in new["upcast"]]
    if after < before:
        yield Change(
            kind, name, "", what, False, False, "not as it is: a version never goes back; give it the next one"
        )
    elif kind == STATES:
        yield Change(kind, name, "", what + fields, True, False, _REBUILT)
    elif missing:
        fix = f"not as it is: give it an upcaster from version {' and '.join(map(str, missing))}"
        yield Change(kind, name, "", f"{what}, without an upcaster{fields}", False, False, fix)
    else:
        yield Change(kind, name, "", f"{what}, with an upcaster{fields}", True, False)


def changes(old: Json, new: Json, *, closed: bool = False) -> list[Found]:
    """Every change between two schemas. closed: whether readers refuse fields that they do not know, as in a row."""
    return _Comparison(old.get("$defs", {}), new.get("$defs", {}), closed).of(old, new, "")


def _verdict(backward: bool, forward: bool) -> str:
    if backward:
        return COMPATIBLE if forward else BACKWARD
    return FORWARD if forward else BREAKING


class _Comparison:
    """old, new: the models that each side's schemas refer to."""

    def __init__(self, old: Json, new: Json, closed: bool) -> None:
        self._old = old
        self._new = new
        self._closed = closed
        self._inside: list[tuple[int, int]] = []

    def of(self, old: Json, new: Json, path: str) -> list[Found]:
        place = (id(resolved(old, self._old)), id(resolved(new, self._new)))
        if place in self._inside:
            return []  # a type that refers to itself
        self._inside.append(place)
        olds, news = alternatives(old, self._old), alternatives(new, self._new)
        if len(olds) == len(news) == 1:
            (was,), (is_,) = olds.values(), news.values()
            found = self._pair(was, is_, path)
        else:
            found = self._unions(olds, news, path)
        self._inside.pop()
        return found

    def _unions(self, olds: Mapping[str, Json], news: Mapping[str, Json], path: str) -> list[Found]:
        """A model is not read as another one, even if it could be."""
        found: list[Found] = []
        same = [(was, is_) for was in olds for is_ in news if not self._pair(olds[was], news[is_], "")]
        gone = {kind: old for kind, old in olds.items() if kind not in [was for was, _ in same]}
        added = {kind: new for kind, new in news.items() if kind not in [is_ for _, is_ in same]}
        for kind, old in gone.items():
            if kind in added:
                found += self._pair(old, added[kind], _joined(path, kind) if " " in kind else path)
            else:
                read = any(
                    all(each.backward and not each.field for each in self._pair(old, new, "")) for new in news.values()
                )
                found.append(Found(path, f"takes no {kind} any more", read, True))
        for kind, new in added.items():
            if kind not in gone:
                read = any(
                    all(each.forward and not each.field for each in self._pair(old, new, "")) for old in olds.values()
                )
                found.append(Found(path, f"takes {kind}, too", True, read))
        return found

    def _pair(self, old: Json, new: Json, path: str) -> list[Found]:
        """Of two that are no unions."""
        if "properties" in old and "properties" in new:
            return self._fields(old, new, path)
        found = _leaf(old, new, path)
        if "properties" in old or "properties" in new:
            return [Found(path, f"{_shown(old)} became {_shown(new)}", False, False)]
        for part, mark in (("items", "[]"), ("additionalProperties", ".*")):
            inner, outer = old.get(part), new.get(part)
            if isinstance(inner, Mapping) or isinstance(outer, Mapping):
                found += self.of(_schema(inner), _schema(outer), path + mark)
        for number, pair in enumerate(zip(old.get("prefixItems", ()), new.get("prefixItems", ()), strict=False)):
            found += self.of(*pair, f"{path}[{number}]")
        return found

    def _fields(self, old: Json, new: Json, path: str) -> list[Found]:
        before, after = old["properties"], new["properties"]
        needed, needs, now = old.get("required", ()), new.get("required", ()), _now(before, after)
        gone, added = [name for name in before if name not in now], [name for name in after if name not in now.values()]
        found: list[Found] = []
        for name in gone:
            field = _joined(path, name)
            if other := next((each for each in added if self._alike(before[name], after[each])), None):
                added.remove(other)
                found.append(Found(field, f"was renamed to {other}: {_RENAMED.format(name, other)}", False, False))
            else:
                found.append(Found(field, "is gone", not self._is_closed(new), name not in needed))
        for name in added:
            what = "is new, and has no default" if name in needs else "is new"
            found.append(Found(_joined(path, name), what, name not in needs, not self._is_closed(old)))
        for name, other in now.items():
            field = _joined(path, other)
            found += _of_names(_read_by(name, before), _read_by(other, after), other, field)
            found += self.of(before[name], after[other], field)
            found += _of_default(before[name], after[other], name in needed, other in needs, field)
        return found + _of_others_names(before, after, now, path)

    def _alike(self, old: Json, new: Json) -> bool:
        """Whether they are of one type, in whatever bounds, with null or without."""
        olds, news = alternatives(old, self._old), alternatives(new, self._new)
        kinds = [kind for kind in olds if kind in news and kind != "null"]
        return any(not self._pair(_unbound(olds[kind]), _unbound(news[kind]), "") for kind in kinds)

    def _is_closed(self, schema: Json) -> bool:
        return self._closed or schema.get("additionalProperties") is False


_RENAMED = (
    "what was written before has no such field; AliasChoices('{1}', '{0}') would read it. If it is another field, let "
    "one release remove {0} and the next one add {1}"
)


def _read_by(name: str, fields: Json) -> list[str]:
    return list(fields[name].get(READ_BY, [name]))


def _now(before: Json, after: Json) -> dict[str, str]:
    """What each field is written as now; without those that neither side reads as the other writes them."""
    now = {name: name for name in before if name in after}
    gone, added = [name for name in before if name not in after], [name for name in after if name not in before]
    for name in gone:
        for other in added:
            if name in _read_by(other, after) or other in _read_by(name, before):
                now[name] = other
    return now


def _of_names(read: Sequence[str], reads: Sequence[str], written: str, field: str) -> list[Found]:
    """read: by which the old release reads it. written: as which the new one writes it."""
    if {*read} == {*reads} and written in read:
        return []
    what = f"was read as {' or '.join(read)}, and is read as {' or '.join(reads)} and written as {written}"
    return [Found(field, what, {*read} <= {*reads}, written in read)]


def _of_others_names(before: Json, after: Json, now: Mapping[str, str], path: str) -> list[Found]:
    """Of fields that are read by what was a name of another one."""
    return [
        Found(_joined(path, other), f"is read as {', '.join(sorted(shared))}, by which {name} was read", False, False)
        for name in before
        for other in after
        if now.get(name) != other and (shared := {*_read_by(name, before)} & {*_read_by(other, after)})
    ]


_COMPUTED = "computed"


def _of_default(old: Json, new: Json, needed: bool, needs: bool, field: str) -> list[Found]:
    if needs and not needed:
        return [Found(field, "has no default any more", False, True)]
    if needed and not needs:  # without a default it may be left out, as in a TypedDict
        return [Found(field, "has a default now", True, "default" in new)]
    if not needs and old.get("default", _COMPUTED) != new.get("default", _COMPUTED):
        was, is_ = (repr(each["default"]) if "default" in each else _COMPUTED for each in (old, new))
        what = f"default {was} became {is_}: what was written without it is read otherwise"
        return [Found(field, what, False, False)]
    return []


def alternatives(schema: Json, models: Json) -> dict[str, Json]:
    """Those of a union, by what tells them apart: their type, or the value of a field, such as `phase open`.

    Each has the rules of the whole union, too.
    """
    schema = resolved(schema, models)
    found: dict[str, Json] = {}
    common = {rule: value for rule, value in _rules(schema).items() if rule not in _UNIONS}
    for each in schema.get("anyOf", schema.get("oneOf", [schema])):
        if each is schema:
            return {_kind(schema): schema}
        for kind, inner in alternatives(each, models).items():
            found[f"{kind} {len(found)}" if kind in found else kind] = {**common, **inner} if common else inner
    return found


def resolved(schema: Json, models: Json) -> Json:
    """The schema itself, if it is a reference."""
    while "$ref" in schema:
        schema = models[schema["$ref"].rpartition("/")[2]]
    return schema


def _kind(schema: Json) -> str:
    tags = [f"{name} {each['const']}" for name, each in schema.get("properties", {}).items() if "const" in each]
    return tags[0] if tags else str(schema.get("type", "value"))


def _schema(part: Any) -> Json:
    """That of a part that may be left out, or true."""
    return part if isinstance(part, Mapping) else {}


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _leaf(old: Json, new: Json, path: str) -> list[Found]:
    was, is_ = _rules(old), _rules(new)
    if was == is_:
        return []
    if was.get(IN_SCHEMA) != is_.get(IN_SCHEMA):
        now = "now: what was written before is not encrypted" if IN_SCHEMA in is_ else "no more: it stays encrypted"
        return [Found(path, f"is personal {now}", False, False)]
    return [Found(path, f"{_shown(old)} became {_shown(new)}", _covers(is_, was), _covers(was, is_))]


_SAYS_NOTHING = {"title", "description", "default", "examples", "deprecated", "discriminator", "$defs", READ_BY}
_UNIONS = {"anyOf", "oneOf"}
_OF_PARTS = {"properties", "required", "items", "prefixItems", "additionalProperties"}


def _rules(schema: Json) -> Json:
    """What a value must be, without what its parts must be."""
    return {rule: value for rule, value in schema.items() if rule not in _SAYS_NOTHING | _OF_PARTS}


def _unbound(schema: Json) -> Json:
    """Of which type it is."""
    return {rule: value for rule, value in schema.items() if rule in _OF_PARTS | {"type", "format", IN_SCHEMA}}


def _shown(schema: Json) -> str:
    rules = [f"{name} {value}" for name, value in _rules(schema).items() if name != "type"]
    return " ".join([str(schema.get("type", "any value")), *([f"({', '.join(rules)})"] if rules else [])])


_BOUNDS = (
    ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    ("minLength", "", "maxLength", ""),
    ("minItems", "", "maxItems", ""),
    ("minProperties", "", "maxProperties", ""),
)
_BOUND_RULES = {rule for rules in _BOUNDS for rule in rules}


def _covers(reader: Json, written: Json) -> bool:
    """Whether the reader takes every value that may have been written."""
    if reader.get("type") not in (None, written.get("type")) and not (
        reader["type"] == "number" and written.get("type") == "integer"
    ):
        return False
    if (values := _values(reader)) is not None:
        return all(value in values for value in _values(written) or [object()])
    others = reader.keys() - _BOUND_RULES - {"type"}
    return all(reader[rule] == written.get(rule) for rule in others) and all(
        _within(_bounds(written, rules), _bounds(reader, rules)) for rules in _BOUNDS
    )


def _values(schema: Json) -> Sequence[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


_Bounds = tuple[tuple[float, int], tuple[float, int]]


def _bounds(schema: Json, rules: tuple[str, str, str, str]) -> _Bounds:
    """The lowest and the highest value, each so that an excluded one is nearer to the middle."""
    low, above, high, below = rules
    lowest = max((schema.get(low, -inf), 0), (schema.get(above, -inf), 1))
    return lowest, min((schema.get(high, inf), 1), (schema.get(below, inf), 0))


def _within(inner: _Bounds, outer: _Bounds) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
