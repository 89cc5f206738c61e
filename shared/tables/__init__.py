"""Rows on this machine: stores, what a batch changes in them, and how they follow their changelogs.

Enters: RocksDB, with kafka and what is below it.
"""
