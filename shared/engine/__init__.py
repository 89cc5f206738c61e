"""The loop that turns records of a partition into rows, events and answers, one transaction at a time.

Enters: operations, parking, tables, kafka and what is below them; neither Faust nor HTTP.
"""
