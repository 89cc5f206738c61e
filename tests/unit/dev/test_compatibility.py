"""Every kind of change of a message or a state, with its verdict in Avro's words and the order of its release."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    IPvAnyAddress,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    create_model,
)
from typing_extensions import TypedDict

from shared.dev.compatibility import (
    BACKWARD,
    BREAKING,
    COMMANDS,
    COMPATIBLE,
    EVENTS,
    FORWARD,
    KINDS,
    PUBLIC,
    STATES,
    Change,
    changes,
    judged,
)
from shared.dev.schemas import schema_of
from shared.domain.message import Command, Event, Int64, Part
from shared.domain.personal import Personal
from shared.domain.state import State
from shared.domain.times import Day, Instant

BASES: Mapping[str, type[BaseModel]] = {COMMANDS: Command, EVENTS: Event, STATES: State, PUBLIC: Event}
Fields = Mapping[str, Any]


class Line(Part):
    sku: str


class LongLine(Part):
    sku: str
    note: str | None = None


NumberedLine = create_model("Line", __base__=Part, sku=(int, ...))  # the same class, changed


class Sized(Part):
    size: int = 0


class Named(Part):
    name: str = ""


class Sure(TypedDict):
    x: int


class Maybe(TypedDict, total=False):
    x: int


class Told(Part):
    text: str = ""


class Shouted(Told):
    model_config = ConfigDict(str_to_upper=True)


class Tree(Part):
    branches: tuple[Tree, ...] = ()


class TallTree(Part):
    branches: tuple[TallTree, ...] = ()
    height: int


class Twig(Part):
    left: Twig | None = None


class Open(State):
    phase: Literal["open"] = "open"
    held: int = 0


class Opened(State):
    phase: Literal["open"] = "open"
    held: int


class Closed(State):
    phase: Literal["closed"] = "closed"


def declared(kind: str, type_: Any) -> Any:
    """type_: of a state, or fields with what they are declared by: a type, or one with its default."""
    if not isinstance(type_, dict):
        return type_
    pairs: Any = {name: each if isinstance(each, tuple) else (each, ...) for name, each in type_.items()}
    return create_model("Any", __base__=BASES[kind], **pairs)


def entry(kind: str, type_: Any, version: int = 1, upcast: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"version": version, "upcast": [*upcast], "schema": schema_of(declared(kind, type_))}


def of(kind: str, **entries: Any) -> dict[str, Any]:
    return {**{each: {} for each in KINDS}, kind: entries}


def between(kind: str, old: Any, new: Any) -> list[Change]:
    return judged(of(kind, it=entry(kind, old)), of(kind, it=entry(kind, new)))


EVERY = (COMMANDS, EVENTS, STATES)
FEBRUARY = date(1997, 2, 1)
MADE = [(int, Field(default_factory=partial(int, number))) for number in (0, 1)]
OF_OTHERS = (int, Field(default_factory=lambda others: len(others)))
A_OR_B = (int, Field(validation_alias=AliasChoices("a", "b")))
WRITTEN_B = (int, Field(validation_alias=AliasChoices("a", "b"), serialization_alias="b"))
CHANGED = [
    # a field more or less
    (EVENTS, {}, {"a": (int, 0)}, COMPATIBLE, "a: is new"),
    ((COMMANDS, STATES), {}, {"a": (int, 0)}, BACKWARD, "a: is new"),
    (EVENTS, {}, {"a": int}, FORWARD, "a: is new, and has no default"),
    ((COMMANDS, STATES), {}, {"a": int}, BREAKING, "a: is new, and has no default"),
    (EVENTS, {"a": (int, 0)}, {}, COMPATIBLE, "a: is gone"),
    (EVENTS, {"a": int}, {}, BACKWARD, "a: is gone"),
    ((COMMANDS, STATES), {"a": (int, 0)}, {}, FORWARD, "a: is gone"),
    ((COMMANDS, STATES), {"a": int}, {}, BREAKING, "a: is gone"),
    (EVERY, {"a": int}, {"b": int}, BREAKING, "a: was renamed to b: what was written before has no such field"),
    (EVERY, {"a": (int, 0)}, {"b": (int, 0)}, BREAKING, "a: was renamed to b: what was written before"),
    (EVERY, {"a": (int, 0)}, {"b": (Int64, 0)}, BREAKING, "a: was renamed to b: what was written before"),
    (EVERY, {"a": int}, {"b": (int | None, None)}, BREAKING, "let one release remove a and the next one add b"),
    # its default
    (EVERY, {"a": int}, {"a": (int, 0)}, COMPATIBLE, "a: has a default now"),
    (EVERY, {"a": (int, 0)}, {"a": int}, FORWARD, "a: has no default any more"),
    (EVERY, {"a": (int, 0)}, {"a": (int, 1)}, BREAKING, "a: default 0 became 1: what was written without it is"),
    (EVERY, {"a": MADE[0]}, {"a": MADE[1]}, BREAKING, "a: default 0 became 1: what was written without it is"),
    (EVERY, {"a": MADE[0]}, {"a": OF_OTHERS}, BREAKING, "a: default 0 became computed: what was"),
    # its type
    (EVERY, {"a": int}, {"a": str}, BREAKING, "a: integer became string"),
    (EVERY, {"a": int}, {"a": float}, BACKWARD, "a: integer became number"),
    (EVERY, {"a": float}, {"a": int}, FORWARD, "a: number became integer"),
    (EVERY, {"a": int}, {"a": Int64}, FORWARD, "a: integer became integer (exclusiveMaximum"),
    (EVERY, {"a": Annotated[int, Field(ge=0)]}, {"a": int}, BACKWARD, "a: integer (minimum 0) became integer"),
    (
        EVERY,
        {"a": Annotated[int, Field(ge=0)]},
        {"a": Annotated[int, Field(gt=0)]},
        FORWARD,
        "a: integer (minimum 0) became integer (exclusiveMinimum 0)",
    ),
    (
        EVERY,
        {"a": Annotated[int, Field(ge=0, le=9)]},
        {"a": Annotated[int, Field(ge=-1, le=8)]},
        BREAKING,
        "a: integer (maximum 9, minimum 0) became integer (maximum 8, minimum -1)",
    ),
    (EVERY, {"a": str}, {"a": Annotated[str, Field(max_length=9)]}, FORWARD, "a: string became string (maxLength 9)"),
    (EVERY, {"a": str}, {"a": Annotated[str, Field(pattern="x")]}, FORWARD, "a: string became string (pattern x)"),
    (EVERY, {"a": str}, {"a": Day}, FORWARD, "a: string became string (format date)"),
    (EVERY, {"a": Day}, {"a": Instant}, BREAKING, "a: string (format date) became string (format date-time"),
    (EVERY, {"a": Literal["x", "y"]}, {"a": Literal["x"]}, FORWARD, "a: string (enum ['x', 'y']) became string (const"),
    (EVERY, {"a": Literal["x"]}, {"a": Literal["x", "y"]}, BACKWARD, "a: string (const x) became string (enum"),
    (EVERY, {"a": Literal["x", "y"]}, {"a": str}, BACKWARD, "a: string (enum ['x', 'y']) became string"),
    (EVERY, {"a": int}, {"a": int | None}, BACKWARD, "a: takes null, too"),
    (EVERY, {"a": int | None}, {"a": int}, FORWARD, "a: takes no null any more"),
    (EVERY, {"a": int | str}, {"a": int | None}, BREAKING, "a: takes no string any more"),
    (EVERY, {"a": str | None}, {"a": Personal}, BREAKING, "a: is personal now: what was written before is not"),
    (EVERY, {"a": Any}, {"a": int}, FORWARD, "a: any value became integer"),
    (EVERY, {"a": Decimal}, {"a": Annotated[Decimal, Field(max_digits=3)]}, FORWARD, "number (max_digits 3)"),
    (EVERY, {"a": Decimal}, {"a": Annotated[Decimal, Field(decimal_places=1)]}, FORWARD, "number (decimal_places 1)"),
    (EVERY, {"a": Annotated[Decimal, Field(ge=0)]}, {"a": Decimal}, BACKWARD, "a: number (ge 0, minimum 0.0) became"),
    (EVERY, {"a": date}, {"a": Annotated[date, Field(ge=FEBRUARY)]}, FORWARD, "(format date, ge 1997-02-01)"),
    (EVERY, {"a": Day}, {"a": Annotated[Day, Field(ge=FEBRUARY)]}, FORWARD, "(format date, ge 1997-02-01)"),
    (
        EVERY,
        {"a": timedelta},
        {"a": Annotated[timedelta, Field(le=timedelta(hours=1))]},
        FORWARD,
        "(format duration, le PT1H)",
    ),
    (EVERY, {"a": AnyUrl}, {"a": HttpUrl}, FORWARD, "became string (allowed_schemes ['http', 'https'], "),
    (
        EVERY,
        {"a": str},
        {"a": Annotated[str, StringConstraints(to_upper=True)]},
        FORWARD,
        "became string (to_upper True)",
    ),
    (
        EVERY,
        {"a": int | float},
        {"a": Annotated[int | float, Field(ge=0)]},
        FORWARD,
        "a: integer became integer (ge 0)",
    ),
    # the names that it is read by
    (EVERY, {"a": int}, {"b": A_OR_B}, BACKWARD, "b: was read as a, and is read as a or b and written as b"),
    (EVERY, {"a": int}, {"a": A_OR_B}, COMPATIBLE, "a: was read as a, and is read as a or b and written as a"),
    (EVERY, {"a": int}, {"a": WRITTEN_B}, BACKWARD, "b: was read as a, and is read as a or b and written as b"),
    (EVERY, {"a": A_OR_B}, {"a": int}, FORWARD, "a: was read as a or b, and is read as a and written as a"),
    # what is inside it
    (
        EVERY,
        {"a": dict[str, int]},
        {"a": dict[int, int]},
        FORWARD,
        "a: object became object (x-keys {'type': 'integer'",
    ),
    (EVERY, {"a": tuple[int, ...]}, {"a": tuple[float, ...]}, BACKWARD, "a[]: integer became number"),
    (EVERY, {"a": tuple[int, str]}, {"a": tuple[int, int]}, BREAKING, "a[1]: string became integer"),
    (EVERY, {"a": dict[str, int]}, {"a": dict[str, str]}, BREAKING, "a.*: integer became string"),
    (EVERY, {"a": dict[str, Any]}, {"a": dict[str, int]}, FORWARD, "a.*: any value became integer"),
    (EVERY, {"a": dict[str, int]}, {"a": Line}, BREAKING, "a: object became object"),
    ((COMMANDS, EVENTS), {"a": tuple[Line, ...]}, {"a": tuple[LongLine, ...]}, COMPATIBLE, "a[].note: is new"),
    (STATES, {"a": tuple[Line, ...]}, {"a": tuple[LongLine, ...]}, BACKWARD, "a[].note: is new"),
    (EVERY, {"a": tuple[Line, ...]}, {"a": tuple[NumberedLine, ...]}, BREAKING, "a[].sku: string became integer"),
    (EVERY, {"a": dict[str, Line]}, {"a": dict[str, NumberedLine]}, BREAKING, "a.*.sku: string became integer"),
    (EVERY, {"a": Line | None}, {"a": NumberedLine | None}, BREAKING, "a.sku: string became integer"),
    (EVERY, {"a": Told}, {"a": Shouted}, FORWARD, "a.text: string became string (to_upper True)"),
    (EVERY, {"a": Sized | Named}, {"a": Sized}, FORWARD, "a: takes no object 1 any more"),
    (EVERY, {"a": Sized | Named}, {"a": Named}, FORWARD, "a: takes no object any more"),
    (EVERY, {"a": Sized}, {"a": Named | Sized}, BACKWARD, "a: takes object, too"),
    (EVERY, {"a": Sure}, {"a": Maybe}, BACKWARD, "a.x: has a default now"),
    (EVENTS, {"a": Tree}, {"a": TallTree}, FORWARD, "a.height: is new, and has no default"),
    # the phases of a state
    (STATES, Open, Open | Closed, BACKWARD, "takes phase closed, too"),
    (STATES, Open | Closed, Open, FORWARD, "takes no phase closed any more"),
    (STATES, Open | Closed, Opened | Closed, FORWARD, "phase open.held: has no default any more"),
]


EACH = [
    pytest.param(kind, *rest, id=f"{kind}-{rest[-1]}")
    for kinds, *rest in CHANGED
    for kind in ([kinds] if isinstance(kinds, str) else kinds)
]
# it is read, but as something else
MEANING = (
    *("was renamed", "default 0 became", "is personal", "to_upper", "was read as a or b", "let one release"),
    *("takes no object", "takes object"),
)


@pytest.mark.parametrize(("kind", "old", "new", "verdict", "told"), EACH)
def test_a_changed_field_is_judged(kind: str, old: Any, new: Any, verdict: str, told: str) -> None:
    found = between(kind, old, new)
    assert told in str(found[0])
    assert _of_all(found) == verdict


def _of_all(changes: list[Change]) -> str:
    backward, forward = all(each.backward for each in changes), all(each.forward for each in changes)
    return Change("", "", "", "", backward, forward).verdict


@pytest.mark.parametrize(
    ("kind", "old", "new", "verdict", "told"),
    [each for each in EACH if not any(word in str(each.values[-1]) for word in MEANING)],
)
def test_the_verdict_is_what_pydantic_does(kind: str, old: Any, new: Any, verdict: str, told: str) -> None:
    old, new = declared(kind, old), declared(kind, new)
    assert reads(kind, old, new, unset=True) == (verdict in (COMPATIBLE, BACKWARD))
    assert reads(kind, new, old, unset=False) == (verdict in (COMPATIBLE, FORWARD))


@pytest.mark.parametrize("kind", KINDS)
def test_of_all_pairs_of_types_none_is_judged_too_well(kind: str) -> None:
    found = {repr(each): declared(kind, each) for _, old, new, *_ in CHANGED for each in (old, new)}
    if kind != STATES:
        found = {name: each for name, each in found.items() if name.startswith("{")}
    raws = {name: written(each, unset=True) for name, each in found.items()}
    schemas = {name: schema_of(each) for name, each in found.items()}
    pairs = [
        (old, new)
        for old in found
        for new in found
        if all(each.backward for each in changes(schemas[old], schemas[new], closed=kind == STATES))
    ]
    assert len(pairs) > len(found)
    assert [(old, new) for old, new in pairs if not are_read(kind, raws[old], found[new])] == []


def reads(kind: str, old: Any, new: Any, *, unset: bool) -> bool:
    return are_read(kind, written(old, unset=unset), new)


def written(type_: Any, *, unset: bool) -> set[bytes]:
    """All that can be written of it: a value for each difference there is between two types above.

    unset: also what was written before there were fields that have a default.
    """
    writer = TypeAdapter(type_)
    values = [_read(writer.validator.validate_json, json.dumps(record).encode()) for record in RECORDS]
    raws = {
        writer.dump_json(value, exclude_unset=each, by_alias=True)
        for value in values
        if value
        for each in {unset, False}
    }
    assert raws
    return raws


def are_read(kind: str, raws: set[bytes], type_: Any) -> bool:
    read = TypeAdapter(type_).validator.validate_json
    return all(_read(read, raw, extra="forbid" if kind == STATES else None) for raw in raws)


def _read(read: Any, raw: bytes, **how: Any) -> Any:
    try:
        return read(raw, **how)
    except ValidationError:
        return None


VALUES: tuple[Any, ...] = (
    *(None, 0, -1, 9, 2**63, 0.5, "", "x", "y", "x" * 10, "1997-01-18", "1997-01-18T09:30:00Z"),
    *([], [1], [0.5], [1, 1], [1, "x"], {}, {"x": 1}, {"x": "x"}, {"sku": "x"}, [{"sku": "x"}]),
    *({"sku": 1}, [{"sku": 1}], {"x": {"sku": "x"}}, {"x": {"sku": 1}}, [{"sku": "x", "note": "x"}]),
    *("1998-01-01", "PT1H", "P1D", "ftp://x/", "http://x/", "1.55", "9999", "X", {"1": 1}, {"size": 1}, {"name": "x"}),
    *({"branches": [{}]}, {"branches": [], "height": 1}),
)
RECORDS = ({}, *({name: value} for name in "ab" for value in VALUES), {"phase": "closed"}, {"phase": "open"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"a": Tree, "b": (int | None, None)},
        {"title": dict[str, Line]},
        {"a": Twig},
        {"a": Annotated[str, AfterValidator(str.strip)], "b": Annotated[str, AfterValidator(partial(str.strip))]},
        {"a": (UUID, Field(default_factory=uuid4))},
        {"a": IPvAnyAddress, "b": defaultdict[str, int], "c": Fraction, "d": complex},
    ],
)
def test_what_is_as_it_was_is_no_change(kind: str, fields: Fields) -> None:
    assert between(kind, fields, fields) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [({"a": int, "b": (int, 0)}, {"a": A_OR_B}), ({"a": A_OR_B}, {"a": int, "b": (int, 0)})],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_by_which_another_field_was_read_is_not_accepted(kind: str, old: Fields, new: Fields) -> None:
    found = between(kind, old, new)
    assert any("is read as b, by which" in str(each) for each in found)
    assert _of_all(found) == BREAKING


def test_a_made_default_is_the_same_as_one_that_is_written() -> None:
    assert between(EVENTS, {"a": (int, 0)}, {"a": MADE[0]}) == []


def test_prose_and_the_order_of_fields_are_no_change() -> None:
    told = create_model("Other", __base__=Event, __doc__="Told otherwise.", b=(str, Field(description="b")), a=(int, 0))
    assert between(EVENTS, {"a": (int, 0), "b": str}, told) == []


ONE, TWO = {"a": str}, {"a_cents": int}


@pytest.mark.parametrize(
    ("old", "new", "verdict", "told"),
    [
        ({}, {"it": entry(COMMANDS, ONE)}, BACKWARD, "command it: is new"),
        ({"it": entry(COMMANDS, ONE)}, {}, FORWARD, "command it: is gone"),
        ({"it": entry(COMMANDS, ONE)}, {"it": entry(COMMANDS, ONE, 2, (1,))}, BACKWARD, "version 1 became 2, with an"),
    ],
)
def test_a_command_is_judged(old: Fields, new: Fields, verdict: str, told: str) -> None:
    (change,) = judged(of(COMMANDS, **old), of(COMMANDS, **new))
    assert (change.verdict, told in str(change)) == (verdict, True)
    assert not change.refused


@pytest.mark.parametrize(
    ("old", "new", "verdict", "told"),
    [
        (None, entry(EVENTS, ONE), BACKWARD, "event it: is new"),
        (entry(EVENTS, ONE), None, BREAKING, "event it: is gone"),
        (
            entry(EVENTS, ONE),
            entry(EVENTS, TWO, 2, (1,)),
            BACKWARD,
            "version 1 became 2, with an upcaster; a is gone; a_cents is new, and has no default",
        ),
        (entry(EVENTS, ONE), entry(EVENTS, TWO, 2), BREAKING, "version 1 became 2, without an upcaster"),
        (entry(EVENTS, ONE), entry(EVENTS, TWO, 3, (1,)), BREAKING, "version 1 became 3, without an upcaster"),
        (entry(EVENTS, ONE, 2, (1,)), entry(EVENTS, TWO, 3, (1, 2)), BACKWARD, "version 2 became 3, with an upcaster"),
        (entry(EVENTS, TWO, 2, (1,)), entry(EVENTS, ONE), BREAKING, "version 2 became 1"),
    ],
)
def test_an_event_is_judged(old: Any, new: Any, verdict: str, told: str) -> None:
    (change,) = judged(*(of(EVENTS, **{"it": each} if each else {}) for each in (old, new)))
    assert (change.verdict, told in str(change)) == (verdict, True)
    assert change.refused == (verdict == BREAKING)


def test_a_public_event_may_come_but_never_go() -> None:
    none, one = of(PUBLIC), of(PUBLIC, it=entry(PUBLIC, ONE))
    assert [(each.verdict, each.refused) for each in judged(none, one)] == [(COMPATIBLE, False)]
    assert [(each.verdict, each.refused) for each in judged(one, none)] == [(BREAKING, True)]


@pytest.mark.parametrize(
    ("old", "new", "verdict", "told"),
    [
        (None, entry(STATES, Open), BACKWARD, "state it: is new"),
        (entry(STATES, Open), None, BREAKING, "state it: is gone"),
        (entry(STATES, Open), entry(STATES, Closed, 2), BACKWARD, "version 1 became 2"),
    ],
)
def test_a_state_is_judged(old: Any, new: Any, verdict: str, told: str) -> None:
    """Its version is the topology's, so another one has rows of its own."""
    (change,) = judged(*(of(STATES, **{"it": each} if each else {}) for each in (old, new)))
    assert (change.verdict, told in str(change)) == (verdict, True)


@pytest.mark.parametrize(
    ("kind", "old", "new", "order"),
    [
        (EVENTS, {}, {"a": (int, 0)}, "in any order; consumers first, if they need a new field"),
        (EVENTS, {"a": int}, {"a": int | None}, "consumers first, on every worker, then producers"),
        (EVENTS, {}, {"a": int}, "not as it is: .* give the event its next VERSION and an upcaster"),
        (EVENTS, {"a": int}, {"b": int}, "not as it is: .* give the event its next VERSION and an upcaster"),
        (COMMANDS, {"a": int}, {"a": (int, 0)}, "in any order"),
        (COMMANDS, {}, {"a": (int, 0)}, "consumers first, on every worker, then producers"),
        (COMMANDS, {"a": int}, {"a": Int64}, "producers first: .* when nothing waits any more"),
        (COMMANDS, {"a": int}, {"b": int}, "not as it is: .* give the command its next VERSION and an upcaster"),
        (PUBLIC, {}, {"a": (int, 0)}, "in any order"),
        (PUBLIC, {}, {"a": int}, "not as it is: .* publish it under the next VERSION to a topic of its own"),
        (PUBLIC, {"a": int}, {"a": int | None}, "not as it is: .* publish it under the next VERSION"),
        (STATES, {"a": int}, {"a": (int, 0)}, "in any order"),
        (STATES, {}, {"a": (int, 0)}, "one by one: beside newer workers the older own nothing"),
        (STATES, Open | Closed, Open, "not as it is: .* raise `version` in topology.py, then `deploy SERVICE`"),
        (STATES, {"a": int}, {"b": int}, "not as it is: .* raise `version` in topology.py, then `deploy SERVICE`"),
    ],
)
def test_each_verdict_says_in_which_order_to_release(kind: str, old: Any, new: Any, order: str) -> None:
    (change,) = between(kind, old, new)
    assert re.match(order, change.order, re.DOTALL)
    assert change.refused == order.startswith("not")
