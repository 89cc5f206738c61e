"""What is wrong with a running system, why that matters, and the command that mends it: pure checks of one snapshot.

Enters: http, for what workers say, and operations with what is below them.
"""
