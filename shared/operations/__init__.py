"""What operators do to topics and groups while no worker decides: provision, rights, read again, mirror.

Enters: parking, kafka and what is below them.
"""
