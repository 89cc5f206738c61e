"""Keys of persons, and text that only they open.

Enters: runtime and domain; the only room with a database.
"""
