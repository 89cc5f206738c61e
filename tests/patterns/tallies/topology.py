"""The table of tallies, and the topic of another service that feeds it."""

from shared.topology import Table, Topic, Topology

THINGS_EVENTS = Topic("things.events.v1")

TALLIES = Table("tallies", source=THINGS_EVENTS, indexes=("times",))

# Its `partitions`, 8 by default, are as many as those of the topics that it reads.
TOPOLOGY = Topology("tallies", topics=(), tables=(TALLIES,))
