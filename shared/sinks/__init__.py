"""Rows of a database outside, kept from tables and events, each exactly once.

Enters: SQLAlchemy and psycopg, with privacy, kafka and what is below them; neither the engine nor HTTP.

A service's `sinks.py` imports from here:

Sink      a database table: its columns, what it is made of, and the function in between
RowsOf    of the rows of a table
EventsOf  of the events of a topic
Change    an Upsert or a Delete
Upsert    a database row as it is from now on
Delete    a database row that is no more
"""

from shared.sinks.sink import Change, Delete, EventsOf, RowsOf, Sink, Upsert

__all__ = ["Change", "Delete", "EventsOf", "RowsOf", "Sink", "Upsert"]
