"""What a service declares: topics, tables, policies and projections, and what follows from them. Pure.

Enters: the domain.

A service imports from here:

Service      all of these and the decider in one value, which worker, Spark and tests are given
Topic        a keyed topic, its own or a neighbour's
Table        rows by key, fed by one topic, or joined
Topology     the topics and tables that a service owns, and their number of partitions
Projection   how events change the rows of a table
Join         how the rows of several views make one
Policy       which commands follow from an event
Rekey        copies of events under other keys, to count them by something but their aggregate
Publication  what other teams read of a service's own events
Timer        commands that wait until they are old enough
Send         a command of a policy, and whom it is for

effect_service   a Service of effects: calls outside that can't be taken back
"""

from shared.topology.declaration import Service
from shared.topology.effect import effect_service
from shared.topology.join import Join
from shared.topology.policy import Policy, Send
from shared.topology.projection import Projection
from shared.topology.publication import Publication
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import Table, Topic, Topology

__all__ = [
    "Join",
    "Policy",
    "Projection",
    "Publication",
    "Rekey",
    "Send",
    "Service",
    "Table",
    "Timer",
    "Topic",
    "Topology",
    "effect_service",
]
