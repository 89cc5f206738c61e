"""The topics, the table and the timers of nicknames."""

from shared.topology import Table, Timer, Topic, Topology

COMMANDS = Topic("nicknames.commands.v1")
EVENTS = Topic("nicknames.events.v1")
TIMERS = Topic("nicknames.timers.v1")

NICKNAMES = Table("nicknames", source=COMMANDS, indexes=("phase", "claimant"), ends=True)

EXPIRY = Timer(source=TIMERS, target=COMMANDS, delay_s=900.0)

# Its `partitions`, 8 by default, limit how many workers can be busy; later only `repartition` makes more of them.
TOPOLOGY = Topology("nicknames", topics=(COMMANDS, EVENTS, TIMERS), tables=(NICKNAMES,), history=EVENTS)
