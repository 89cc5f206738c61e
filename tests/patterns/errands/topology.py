"""The topics, the table and the timers of errands."""

from shared.topology import Table, Timer, Topic, Topology

COMMANDS = Topic("errands.commands.v1")
EVENTS = Topic("errands.events.v1")
TIMERS = Topic("errands.timers.v1")
RETRIES = Topic("errands.timers.v2", retention_ms=7 * 86_400_000)  # longer than any outage: docs/calendar.md

ERRANDS = Table("errands", source=COMMANDS, indexes=("phase", "pending_for"))

EXPIRY = Timer(source=TIMERS, target=COMMANDS, delay_s=120.0)  # more than twice what a call may take
RETRY = Timer(source=RETRIES, target=COMMANDS, delay_s=30.0, due="due")

# Its `partitions`, 8 by default, are final once anything is written: they limit how many workers can be busy.
TOPOLOGY = Topology("errands", topics=(COMMANDS, EVENTS, TIMERS, RETRIES), tables=(ERRANDS,), history=EVENTS)
