"""The story of a message: all that it came from and led to, found in the topics themselves; no index is kept.

Enters: operations, kafka and what is below them; neither the engine nor HTTP.
"""
