"""Records that could not be handled: where they wait, and what operators want done with them.

Enters: tables and what is below them.
"""
