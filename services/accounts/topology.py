"""The topics and the table of accounts."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("accounts.commands.v1")
EVENTS = Topic("accounts.events.v1")
DEAD = Topic("accounts.dead.v1")

ACCOUNTS = Table("accounts", source=COMMANDS, indexes=("phase", "balance_cents"))

TOPOLOGY = Topology("accounts", topics=(COMMANDS, EVENTS, DEAD), tables=(ACCOUNTS,), history=EVENTS)
