"""Baskets after they got more partitions, declared: what Spark is given."""

from tests.engine.baskets import baskets

SERVICE = baskets("wide", 6)
