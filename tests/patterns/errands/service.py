"""Errands, declared: what its workers, Spark, the tools and the tests are given."""

from shared.topology import effect_service

SERVICE = effect_service("errands", "errand", targets=("partner", "mail"))  # as in effects.py
