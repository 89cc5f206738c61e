"""Rows of a database outside, kept from tables and events, each exactly once.

Enters: SQLAlchemy and psycopg, with privacy, kafka and what is below them; neither the engine nor HTTP.
"""
