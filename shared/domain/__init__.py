"""What a service's domain imports: messages, deciders, rows, and all that one command does. Pure.

Enters: pydantic and msgspec. No clock, no chance, no input or output.
"""
