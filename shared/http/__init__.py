"""What callers see: commands, reads, lists, streams, and the other workers of a service.

Enters: FastAPI, with parking, tables, privacy and what is below them; neither Faust nor the engine.
"""
