"""An aggregate as data: its commands, its events, its state, and the functions that connect them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, Generic, TypeVar

from shared.domain.envelope import C, CommandCodec, E, EventCodec
from shared.domain.message import Command, check_parts, check_types
from shared.domain.personal import check_alike
from shared.domain.row import Row, RowCodec, S
from shared.domain.upcasting import Upcasters, check_upcasters

Fact = TypeVar("Fact")


def _any_id(_id: str, _command: Command) -> None:
    """Refuses none."""


@dataclass(frozen=True, eq=False)
class Decider(Generic[C, E, S]):
    """An aggregate as data. Its functions are pure, without clock, randomness or I/O: every replay computes the same.

    decide     (command, state) -> the events that follow, in their order; an empty list means that nothing changes. It
               refuses a command by raising a DomainError. Any other exception is a bug, and parks nothing but the
               command, whose outcome is then `command.failed`.
    evolve     (state, event) -> the state after that event. It is total: it never raises, and never validates. It
               changes nothing that it is given, because all new aggregates share `initial`, and `frozen` does not
               freeze a dict or a list in it.
    initial    the state of an aggregate without events. Where its table `ends`, `evolve` gives it to end the row, and
               `decide` finds it when the aggregate begins again.
    commands   the classes of all commands that `decide` knows; of a union, `get_args(AccountCommand)`.
    events     the classes of all events that `evolve` knows.
    state      the type of the state, by which pydantic reads rows: a model or a discriminated union of phases.
    upcasters  how older versions of these messages are read.
    check_id   (aggregate id, command) -> nothing, or a refusal as of `decide`, before it: for rules about the id, which
               `decide` does not see, such as its form, or that nothing is moved to where it is. By default any will do.

    Raises ValueError for commands or events that `check_types` or `check_parts` refuses, or of which a version cannot
    be upcast, for an `initial` that is not read from a row as it was, and for a field that is Personal in one of all
    these and not in another.
    """

    decide: Callable[[C, S], Sequence[E]]
    evolve: Callable[[S, E], S]
    initial: S
    commands: tuple[type[C], ...]
    events: tuple[type[E], ...]
    state: Any
    upcasters: Upcasters = field(default_factory=dict)
    check_id: Callable[[str, C], None] = _any_id

    def __post_init__(self) -> None:
        check_types(self.commands)
        check_parts(self.commands)
        check_types(self.events)
        check_upcasters((*self.commands, *self.events), self.upcasters)
        check_alike((*self.commands, *self.events, self.state))
        self.row_codec.check_initial(self.initial)

    @cached_property
    def command_codec(self) -> CommandCodec[C]:
        return CommandCodec(self.commands, self.upcasters)

    @cached_property
    def event_codec(self) -> EventCodec[E]:
        return EventCodec(self.events, self.upcasters)

    @cached_property
    def row_codec(self) -> RowCodec[S]:
        return RowCodec(self.state)

    @cached_property
    def initial_row(self) -> Row[S]:
        """The row of an aggregate that has no events yet."""
        return Row(sequence=0, state=self.initial, outcomes={}, offset=-1)


def fold(evolve: Callable[[S, Fact], S], events: Iterable[Fact], start: S) -> S:
    """The state after `events`, applied in their order, starting from `start`. Raises what `evolve` raises."""
    return reduce(evolve, events, start)
