"""Who owns what: the only room that knows Faust.

Enters: Faust, with the engine and what is below it.
"""
