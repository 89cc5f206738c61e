"""The topics and the tables of inventory."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("inventory.commands.v1")
EVENTS = Topic("inventory.events.v1")

ITEMS = Table("items", source=COMMANDS)
LEVELS = Table("levels", source=EVENTS, indexes=("physical",))

TOPOLOGY = Topology("inventory", topics=(COMMANDS, EVENTS), tables=(ITEMS, LEVELS))
