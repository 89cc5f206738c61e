"""The topics and the table of inventory."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("inventory.commands.v1")
EVENTS = Topic("inventory.events.v1")
DEAD = Topic("inventory.dead.v1")

ITEMS = Table("items", source=COMMANDS)

TOPOLOGY = Topology("inventory", topics=(COMMANDS, EVENTS, DEAD), tables=(ITEMS,))
