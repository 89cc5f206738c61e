"""What a service declares: topics, tables, policies and projections, and what follows from them. Pure.

Enters: the domain.
"""
