"""The verbs of `dev.py`, by topic. A module is imported when one of its verbs is typed, or all are listed."""
