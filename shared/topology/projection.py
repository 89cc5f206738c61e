"""A projection as data: the function that folds events into it, with its types. The engine and Spark run it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, TypeVar

from shared.domain.envelope import E, EventCodec, EventEnvelope
from shared.domain.message import check_types
from shared.domain.row import Row, RowCodec
from shared.domain.upcasting import Upcasters
from shared.topology.topics import Table

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Projection(Generic[E, V]):
    """How events change the rows of a table: each row is the fold of the events of its key, in their order in the log.

    table      what it fills, from the topic that is the table's source.
    project    (view, event, key) -> the view of that key after the event. The key is the record's, which after a
               `Rekey` is not the aggregate id. The function is pure and total, like `evolve`.
    initial    the view of a key before its first event. Where the table `ends`, `project` gives it to end the row.
    events     the classes of events that it counts; others are skipped.
    state      the type of the view, by which pydantic reads rows.
    upcasters  how older versions of these events are read.

    Raises ValueError for events that `check_types` refuses, for a joined table, and for an `initial` that is not read
    from a row as it was; None is never in a row.
    """

    table: Table
    project: Callable[[V, EventEnvelope[E], str], V]
    initial: V
    events: tuple[type[E], ...]
    state: Any
    upcasters: Upcasters = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self.events)
        if self.table.joins:
            raise ValueError(f"{self.table.name} is joined of other tables; fix: fill it with a Join")
        codec = self.row_codec
        if self.initial is not None:
            codec.check_initial(self.initial)

    @cached_property
    def event_codec(self) -> EventCodec[E]:
        return EventCodec(self.events, self.upcasters)

    @cached_property
    def row_codec(self) -> RowCodec[V]:
        return RowCodec(self.state)

    def has_expired(self, view: V, clock: datetime) -> bool:
        """Whether the row of that view has ended by then. clock: of its partition, as of the record in hand."""
        at = None if self.table.expires is None else getattr(view, self.table.expires, None)
        return at is not None and bool(at <= clock)

    @cached_property
    def initial_row(self) -> Row[V]:
        """The row of a key before its first event."""
        return Row(0, self.initial, {}, -1)
