"""The topics and the table of things."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("things.commands.v1")
EVENTS = Topic("things.events.v1")

THINGS = Table("things", source=COMMANDS, indexes=("phase",))

# Its `partitions`, 8 by default, limit how many workers can be busy; later only `repartition` makes more of them.
TOPOLOGY = Topology("things", topics=(COMMANDS, EVENTS), tables=(THINGS,))
