"""Clients: what is asked of brokers, read from them and written to them.

Enters: confluent-kafka and aiokafka, with runtime, topology and domain.
"""
