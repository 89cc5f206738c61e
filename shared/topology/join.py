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
           topic is behind the others: what is sold may be read before what was received. Before the key come the
           views of the rows that the first one refers to, in the order of `refers`.
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

    @cached_property
    def parts(self) -> Sequence[tuple[str, Table]]:
        """The tables of whose rows it makes one, each as `made_of` calls it: those that it joins, then by each field
        the one that it refers to.
        """
        referred = [(f"{table.name}:{field}", table) for field, table in self.table.refers]
        return [*((table.name, table) for table in self.table.joins), *referred]

    def keys_of(self, view: Any) -> Sequence[bytes | None]:
        """The key of each row that the first view refers to, in the order of `refers`."""
        found = (getattr(view, field, None) for field, _ in self.table.refers)
        return [each.encode() if isinstance(each, str) else None for each in found]

    def made_of(self, rows: Sequence[Row[Any]]) -> dict[str, list[int]]:
        """Which rows these are, as a row says it that is made of them."""
        named = zip(self.parts, rows, strict=True)
        return {name: [row.sequence, row.offset] for (name, _), row in named if row.sequence}

    def row(self, rows: Sequence[Row[Any]], key: str) -> Row[V] | None:
        """The joined row; None if no view has one. rows: in the order of `parts`, and the `initial_row` of a projection
        whose view has none, because it has not begun or has ended.

        Its sequence is the sum of those that are of `key`: how many events they include.
        """
        sequence = sum(row.sequence for row in rows[: len(self.table.joins)])
        if not sequence:
            return None
        view = self.join(*(row.state for row in rows), key)
        return Row(sequence, view, {}, NO_OFFSET, made_of=self.made_of(rows))


NO_OFFSET = -1
"""Of a joined row: no single topic has its position."""
