"""What a developer runs on one machine: brokers, workers, scaffolding, and the commands of `dev.py`.

Enters: everything but testing.
"""
