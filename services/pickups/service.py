"""Pickups, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import effect_service

SERVICE = effect_service("pickups", "pickup", targets=("courier",))  # as in effects.py
