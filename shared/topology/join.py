"""Rows made of the rows that several views have of the same key, whichever of them has changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from shared.domain.row import Row, RowCodec
from shared.topology.topics import Table

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Join(Generic[V]):
    """How the rows of a joined table follow from those of the views that it joins.

    Each view is folded from its own topic, in that topic's order. Two topics have no order in common, so nothing
    may depend on one: a joined row depends on the present rows alone, and is the same whichever came first.

    table  what it fills, made by `Table.joined`.
    join   (view of each table in `joins`, in their order, then the key) -> the joined view. A view that has no row of
           the key, or none any more, is its projection's `initial`. The function is pure and total, also while one
           topic is behind the others: what is sold may be read before what was received.
    state  the type of the joined view, by which pydantic reads rows.

    Raises ValueError for a table that joins none.
    """

    table: Table
    join: Callable[..., V]
    state: Any

    def __post_init__(self) -> None:
        if not self.table.joins:
            raise ValueError(f"{self.table.name} joins no tables; fix: declare it with Table.joined, or use Projection")

    @cached_property
    def row_codec(self) -> RowCodec[V]:
        return RowCodec(self.state)

    def row(self, rows: Sequence[Row[Any]], key: str) -> Row[V] | None:
        """The joined row; None if no view has one. rows: those of `key`, in the order of the table's `joins`, and the
        `initial_row` of a projection whose view has none, because it has not begun or has ended.

        Its sequence is the sum of theirs: how many events they include.
        """
        made_of = {
            table.name: [row.sequence, row.offset]
            for table, row in zip(self.table.joins, rows, strict=True)
            if row.sequence
        }
        if not made_of:
            return None
        view = self.join(*(row.state for row in rows), key)
        return Row(sum(row.sequence for row in rows), view, {}, NO_OFFSET, made_of=made_of)


NO_OFFSET = -1
"""Of a joined row: no single topic has its position."""
