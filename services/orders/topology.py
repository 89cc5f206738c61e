"""The topics, the tables and the timers of orders, and the topics of other services that it reads and writes."""

from shared.topology import Table, Timer, Topic, Topology

COMMANDS = Topic("orders.commands.v1")
EVENTS = Topic("orders.events.v1")
TIMERS = Topic("orders.timers.v1")
PUBLIC = Topic("orders.public.v1")

ORDERS = Table("orders", source=COMMANDS, indexes=("phase", "customer_id"))
OPEN = Table("open", source=EVENTS, indexes=("waits_for", "since"), ends=True)

DEADLINES = Timer(source=TIMERS, target=COMMANDS, delay_s=30.0)  # ORDERS_DEADLINE_S, if it is set

TOPOLOGY = Topology("orders", topics=(COMMANDS, EVENTS, TIMERS, PUBLIC), tables=(ORDERS, OPEN))

INVENTORY_COMMANDS = Topic("inventory.commands.v1")
INVENTORY_EVENTS = Topic("inventory.events.v1")
ACCOUNTS_COMMANDS = Topic("accounts.commands.v1")
ACCOUNTS_EVENTS = Topic("accounts.events.v1")
PICKUPS_COMMANDS = Topic("pickups.commands.v1")
