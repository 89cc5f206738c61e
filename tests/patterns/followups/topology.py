"""The topics, the table and the timers of followups, and the topic of another service that it reads."""

from shared.topology import Table, Timer, Topic, Topology

COMMANDS = Topic("followups.commands.v1")
EVENTS = Topic("followups.events.v1")
TIMERS = Topic("followups.timers.v1")

FOLLOWUPS = Table("followups", source=COMMANDS, indexes=("phase",))

DEADLINES = Timer(source=TIMERS, target=COMMANDS, delay_s=30.0)

# Its `partitions`, 8 by default, are as many as those of the topics that it reads.
TOPOLOGY = Topology("followups", topics=(COMMANDS, EVENTS, TIMERS), tables=(FOLLOWUPS,))

THINGS_EVENTS = Topic("things.events.v1")
