"""The topics and the tables of carts: rows of all end."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("carts.commands.v1")
EVENTS = Topic("carts.events.v1")

CARTS = Table("carts", source=COMMANDS, indexes=("phase",), ends=True)
WAITING = Table("waiting", source=EVENTS, indexes=("items",), ends=True)
FRESH = Table("fresh", source=EVENTS, expires="until")

TOPOLOGY = Topology("carts", topics=(COMMANDS, EVENTS), tables=(CARTS, WAITING, FRESH), history=EVENTS, partitions=2)
