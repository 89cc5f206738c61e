"""The topics and the table of accounts."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("accounts.commands.v1")
EVENTS = Topic("accounts.events.v1")

ACCOUNTS = Table("accounts", source=COMMANDS, indexes=("phase", "balance_cents"))

TOPOLOGY = Topology("accounts", topics=(COMMANDS, EVENTS), tables=(ACCOUNTS,), history=EVENTS)
