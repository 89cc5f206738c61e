"""What is lost between writing and reading is refused by `dev.py schemas`, at any depth; nothing else is."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    JsonValue,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    Tag,
    WrapSerializer,
    computed_field,
    create_model,
    field_serializer,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import TypeAliasType, TypedDict

from shared.dev.roundtrip import check_roundtrip
from shared.domain.envelope import CommandCodec, EventCodec
from shared.domain.message import Command, Event, Int64
from shared.domain.row import Row, RowCodec
from shared.domain.state import State
from shared.domain.times import Day, Instant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Mood(StrEnum):
    GOOD = "good"


class Inner(BaseModel):
    x: int = 1
    made: list[int] = Field(default_factory=list)


class Box(BaseModel, Generic[T]):
    content: T


class Tree(BaseModel):
    left: Tree | None = None
    children: list[Tree] = []


class Card(BaseModel):
    kind: Literal["card"] = "card"
    cents: int


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    type: str = "x"


class Pair(NamedTuple):
    one: int
    other: str = ""


class Options(TypedDict, total=False):
    type: str
    shade: Annotated[int, Field(alias="hue")]


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Numbers(RootModel[tuple[int, ...]]):
    pass


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)

    the_id: int


class Named(BaseModel):
    plain: int = Field(alias="p")
    choice: int = Field(validation_alias=AliasChoices("old", "choice"))
    path: int = Field(validation_alias=AliasPath("path"))
    by_name: int = Field(default=0, validation_alias=AliasChoices("older", AliasPath("b", 0), "by_name"))


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_name=True)

    x: int = Field(validation_alias="z")


class Odd:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    odd: Annotated[Odd, BeforeValidator(lambda _: Odd()), PlainSerializer(lambda _: "odd")]


class Serialized(BaseModel):
    names: list[str]

    @field_serializer("names")
    def _sorted(self, names: list[str]):  # type: ignore[no-untyped-def]
        return sorted(names)


class Whole(BaseModel):
    """Its own serializer writes it, and its validator reads that."""

    x: int = Field(default=1, exclude=True)
    y: Annotated[int, Field(serialization_alias="z")] = 1

    @model_serializer
    def _write(self) -> list[int]:
        return [self.x, self.y]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, read: Any) -> Any:
        return dict(zip("xy", read, strict=True)) if isinstance(read, list) else read


class Migrated(BaseModel):
    """Its validator reads what pydantic would not."""

    x: int = Field(default=1, validation_alias="z")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, read: Any) -> Any:
        return {"z": read["x"]} if "x" in read else read

    @computed_field
    def double(self) -> int:
        return 2 * self.x


class InnerWithMore(BaseModel):
    """In a message, its reader ignores what is computed."""

    x: int = 1

    @computed_field
    def double(self) -> int:
        return 2 * self.x


JsonLike = TypeAliasType("JsonLike", "list[JsonLike] | dict[str, JsonLike] | int | None")

SOUND: list[tuple[Any, Any]] = [
    (Int64, 2**63 - 1),
    (bool | int | float | str | None, 1.5),
    (Decimal, Decimal("9.50")),
    (Annotated[Decimal, Field(max_digits=5, decimal_places=2)], Decimal("9.50")),
    (Fraction, Fraction(1, 3)),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (Mood, Mood.GOOD),
    (UUID, UUID(int=5)),
    (Day, date(2026, 1, 1)),
    (Day | None, None),
    (Instant, NOW),
    (datetime, NOW),
    (timedelta, timedelta(seconds=90)),
    (bytes, b"abc"),
    (Path, Path("a")),
    (IPv4Address, IPv4Address("1.2.3.4")),
    (Literal["a", None], None),
    (Any, {"a": [1]}),
    (JsonValue, {"a": [1, None]}),
    (JsonLike, [[1], {"a": None}]),
    (object, 1),
    (Inner, Inner(x=2, made=[1])),
    (SerializeAsAny[Inner], Inner(x=2)),
    (Box[int], Box[int](content=1)),
    (Box[Box[Inner] | None], Box[Box[Inner] | None](content=None)),
    (Tree, Tree(left=Tree(), children=[Tree()])),
    (Annotated[Card | Cash, Field(discriminator="kind")], Cash()),
    (list[Card | Cash], [Cash(), Card(cents=1)]),
    (
        Annotated[
            Annotated[Card, Tag("type")] | Annotated[Cash, Tag("b")],
            Discriminator(lambda v: "type" if "cents" in (v if isinstance(v, dict) else vars(v)) else "b"),
        ],
        Card(cents=1),
    ),
    (Options, {"type": "a", "shade": 1}),
    (Point, Point(1)),
    (list[Point], [Point(1, 2)]),
    (Numbers, Numbers((1, 2))),
    (Pair, Pair(1, "a")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (tuple[Inner, ...], (Inner(),)),
    (Sequence[Inner], [Inner()]),
    (Mapping[str, Inner], {"type": Inner()}),
    (dict[int, Inner], {1: Inner()}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[Decimal, int], {Decimal("1.5"): 1}),
    (dict[Mood, list[Inner]], {Mood.GOOD: [Inner()]}),
    (dict[Day, int], {date(2026, 1, 1): 1}),
    (defaultdict[str, list[int]], defaultdict(list, a=[1])),
    (OrderedDict[str, int], OrderedDict(a=1)),
    (Counter[str], Counter("aab")),
    (deque[int], deque([1])),
    (Camel, Camel.model_validate({"theId": 1})),
    (Named, Named(p=1, old=2, path=3, older=4)),
    (ByName, ByName.model_validate({"z": 3})),
    (Holder, Holder(odd=Odd())),
    (Serialized, Serialized(names=["a", "b"])),
    (Whole, Whole(x=2, y=3)),
    (Annotated[int, PlainSerializer(lambda x: x + 1), BeforeValidator(lambda x: x - 1)], 5),
    (Annotated[int, AfterValidator(abs)], 5),
    (Annotated[frozenset[str], PlainSerializer(sorted)], frozenset({"a", "b"})),
    (Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value)], SecretStr("x")),
    (Annotated[SecretStr | None, WrapSerializer(lambda x, _: x and x.get_secret_value())], SecretStr("x")),
    (Annotated[Json[dict[str, int]], PlainSerializer(lambda x: '{"a":1}')], {"a": 1}),
    (Json[dict[str, int]] | dict[str, int], {"a": 1}),
    (Annotated[list[int], Field(json_schema_extra={"writeOnly": True, "uniqueItems": True})], [1]),
]


def holding(base: type[Any], type_: Any) -> Any:
    """A subclass of `base` with a field of that type."""

    class Lax(base):  # type: ignore[misc]
        model_config = ConfigDict(strict=False, arbitrary_types_allowed=True)

    return create_model("Holding", __base__=Lax, field=(type_, ...))


@pytest.mark.parametrize(("type_", "value"), SOUND)
def test_what_comes_back_is_accepted(type_: Any, value: Any) -> None:
    """And it does come back."""
    event, command, state = (holding(base, type_) for base in (Event, Command, State))
    accepted(event, command)
    check_roundtrip(state, whole=True)
    event.TYPE, command.TYPE = "happened", "do"
    events, commands = EventCodec([event]), CommandCodec([command])
    written: dict[str, Any] = {"aggregate_id": "a", "correlation_id": "c"}
    raw = events.write(event.model_construct(field=value), event_id="e", sequence=1, occurred_at=NOW, **written)
    assert events.decode(raw).data.field == value
    wrapped = commands.wrap(command.model_construct(field=value), command_id="c", issued_at=NOW, **written)
    assert commands.decode(commands.encode(wrapped)).data.field == value
    codec: RowCodec[Any] = RowCodec(state)
    codec.check_initial(state.model_construct(field=value))
    assert codec.decode_whole(codec.encode(Row(0, state.model_construct(field=value), {}, 0))).state.field == value


def computing(base: type[Any]) -> type[Any]:
    class Computing(base):  # type: ignore[misc]
        TYPE: ClassVar[str] = "computing"
        x: int = 1

        @computed_field
        def double(self) -> int:
            return 2 * int(self.x)

    return Computing


def test_what_is_computed_is_refused_where_it_could_not_be_read() -> None:
    with pytest.raises(
        ValueError, match=r"^Computing\.double: a computed field is written, but refused when read; fix"
    ):
        check_roundtrip(computing(Command))
    with pytest.raises(ValueError, match=r"^Computing\.double: .*; fix: make it a plain property"):
        check_roundtrip(computing(State), whole=True)
    with pytest.raises(ValueError, match=r"^InnerWithMore\.double: "):
        check_roundtrip(holding(State, dict[str, list[InnerWithMore | None]]), whole=True)
    accepted(computing(Event), *declared(InnerWithMore))


def declared(type_: Any) -> list[type[Any]]:
    """An event and a command with a field of that type."""
    event, command = holding(Event, type_), holding(Command, type_)
    event.TYPE, command.TYPE = "happened", "do"
    return [event, command]


def test_extra_fields_are_refused_in_a_row() -> None:
    class Extra(BaseModel):
        model_config = ConfigDict(extra="allow")

    with pytest.raises(ValueError, match=r"^Extra: extra='allow' writes fields that no row may have; fix: declare a"):
        check_roundtrip(holding(State, tuple[Extra, ...]), whole=True)
    accepted(*declared(Extra))


NESTED: list[Any] = [
    lambda it: it,
    lambda it: it | None,
    lambda it: list[it | None],  # type: ignore[valid-type]
    lambda it: dict[str, tuple[int, it]],  # type: ignore[valid-type]
    lambda it: Box[dict[str, Sequence[it]]],  # type: ignore[valid-type]
    lambda it: Iterable[it],  # type: ignore[valid-type]
    lambda it: defaultdict[str, Annotated[it, Field(default_factory=dict)]],  # type: ignore[valid-type]
]

FIELDS = [
    ({"validation_alias": "z"}, r"is written as 'field', but read as 'z'; fix: use a plain alias, or add 'field' to"),
    ({"validation_alias": AliasChoices("old", "new")}, "is written as 'field', but read as 'old' or 'new'; fix: "),
    ({"validation_alias": AliasPath("field", 0)}, "is written as 'field', but read as a part of another; fix: "),
    ({"serialization_alias": "z"}, "is written as 'z', but read as 'field'; fix: "),
    ({"alias": "y", "serialization_alias": "z"}, "is written as 'z', but read as 'y'; fix: "),
    ({"exclude": True}, "exclude=True leaves it out of the JSON, so it is lost; fix: remove exclude"),
]


@pytest.mark.parametrize(("options", "problem"), FIELDS)
@pytest.mark.parametrize("outer", NESTED)
def test_a_field_that_is_not_read_as_it_is_written_is_refused(
    options: dict[str, Any], problem: str, outer: Callable[[Any], Any]
) -> None:
    class Lossy(BaseModel):
        field: int = Field(0, **options)

    number: Any = Annotated[int, Field(**options)]
    fields = {"field": number}
    lossy_dict = TypedDict("LossyDict", fields)  # type: ignore[misc]

    for lossy in (Lossy, lossy_dict):
        refused(outer(lossy), rf"^{lossy.__name__}\.field: .*{problem}")


@pytest.mark.parametrize("outer", NESTED)
def test_a_field_that_no_reader_may_give_is_refused(outer: Callable[[Any], Any]) -> None:
    @dataclass(frozen=True)
    class Counted:
        count: int = field(default=0, init=False)

    refused(outer(Counted), r"^Counted\.count: it is written, but refused when read; fix: remove init=False")


@pytest.mark.parametrize("outer", NESTED)
def test_a_field_that_no_writer_keeps_is_refused_unless_it_may_be_missing(outer: Callable[[Any], Any]) -> None:
    @dataclass
    class Scaled:
        size: int
        factor: InitVar[int]

    @dataclass
    class ScaledByDefault:
        size: int
        factor: InitVar[int] = 1

    refused(outer(Scaled), r"^Scaled\.factor: it is not written, but needed when read; fix: give the InitVar a default")
    accepted(*declared(outer(ScaledByDefault)))


@pytest.mark.parametrize("outer", NESTED)
@pytest.mark.parametrize("make", [uuid4, lambda: datetime.now(UTC), lambda: [uuid4()]])
def test_a_default_that_differs_each_time_is_refused(make: Callable[[], Any], outer: Callable[[Any], Any]) -> None:
    class Marked(BaseModel):
        mark: Any = Field(default_factory=make)

    @dataclass(frozen=True)
    class Noted:
        mark: Any = field(default_factory=make)

    for unlike in (Marked, Noted):
        refused(outer(unlike), rf"^{unlike.__name__}\.mark: its default differs each time, .*; fix: use a constant")


def test_aliases_that_a_class_makes_are_checked_too() -> None:
    class OneWay(BaseModel):
        model_config = ConfigDict(alias_generator=AliasGenerator(serialization_alias=to_camel))

        the_id: int

    class NotByAlias(BaseModel):
        model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)

        the_id: int = Field(alias="theId")

    for lossy in (OneWay, NotByAlias):
        refused(lossy, rf"^{lossy.__name__}\.the_id: it is written as 'theId', but read as 'the_id'; fix")


def test_names_that_a_validator_reads_are_not_judged() -> None:
    accepted(*declared(Migrated))


@pytest.mark.parametrize("outer", NESTED)
@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        (SecretStr, r"its JSON is masked, so .* is read; fix: use str"),
        (set[str], r"a set has no order, so its JSON differs by process; fix: use a sorted tuple"),
        (frozenset[int], r"a set has no order"),
        (AbstractSet[str], r"a set has no order"),
        (SecretBytes, r"its JSON is masked"),
        (Secret[int], r"its JSON is masked"),
        (defaultdict[str, list[SecretStr]], r"its JSON is masked"),
        (Json[list[int]], r"Json is read from text, but not written as text; fix: use the type inside it"),
    ],
)
def test_a_type_that_does_not_come_back_is_refused(type_: Any, problem: str, outer: Callable[[Any], Any]) -> None:
    refused(outer(type_), rf"^(Holding\.field|Box.*\.content): {problem}")


def refused(type_: Any, match: str) -> None:
    """In commands, events and states."""
    for each in declared(type_):
        with pytest.raises(ValueError, match=match):
            check_roundtrip(each)
    with pytest.raises(ValueError, match=match):
        check_roundtrip(holding(State, type_), whole=True)


def accepted(*types: Any) -> None:
    for each in types:
        check_roundtrip(each)


def test_a_class_that_is_not_complete_is_left_to_pydantic() -> None:
    class Waiting(Command):
        TYPE = "wait"
        later: Later  # type: ignore[name-defined] # noqa: F821

    check_roundtrip(Waiting)
