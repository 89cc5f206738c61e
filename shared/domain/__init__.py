"""What a service's domain imports: messages, deciders, rows, and all that one command does. Pure.

Enters: pydantic and msgspec. No clock, no chance, no input or output.

A service imports from here:

Command        an intent, named in the imperative; its base class
Event          a fact, named in the past tense; its base class
Part           the base of a model inside a message
EventEnvelope  an event with its place: aggregate, sequence, times and causes
State          the base of what `evolve` and projections return
Row            what is kept of a key: its state, and the number of events so far
Decider        an aggregate as data: `decide`, `evolve` and their types
fold           the state after some events
DomainError    a rule refused a command, with a code that callers can rely on
BadMessage     a message cannot be read
Upcasters      how older versions of messages are read
Personal       text about a person, which the domain has only encrypted
Encrypted      the type of such a text once it is given; tests make it of text
Int64          an integer that every reader of JSON or Parquet can represent
Day            a calendar day, UTC
Instant        a moment, UTC
at             the moment when the clocks of a zone show a time
every          the next moment of what comes again
AggregateId    text that becomes the id of an aggregate
Reference      how services name each other's aggregates: `orders:o-1`
reference      makes one
referenced     the aggregate id in one, if it names an aggregate of this service
"""

from shared.domain.calendar import at, every
from shared.domain.decider import Decider, fold
from shared.domain.envelope import EventEnvelope
from shared.domain.errors import BadMessage, DomainError
from shared.domain.ids import AggregateId, Reference, reference, referenced
from shared.domain.message import Command, Event, Int64, Part
from shared.domain.personal import Encrypted, Personal
from shared.domain.row import Row
from shared.domain.state import State
from shared.domain.times import Day, Instant
from shared.domain.upcasting import Upcasters

__all__ = [
    "AggregateId",
    "BadMessage",
    "Command",
    "Day",
    "Decider",
    "DomainError",
    "Encrypted",
    "Event",
    "EventEnvelope",
    "Instant",
    "Int64",
    "Part",
    "Personal",
    "Reference",
    "Row",
    "State",
    "Upcasters",
    "at",
    "every",
    "fold",
    "reference",
    "referenced",
]
