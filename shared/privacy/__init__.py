"""Keys of persons, and text that only they open.

Enters: SQLAlchemy, with runtime and domain.
"""
