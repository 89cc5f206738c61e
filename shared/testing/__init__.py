"""What a service's own tests import: sentences about deciders, a node in memory, recorded messages.

Enters: everything but dev.
"""
