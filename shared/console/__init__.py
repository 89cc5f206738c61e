"""One page over all services: asks their workers, shows what they say, and computes nothing that they do not know.

Enters: http, for what workers say. What needs brokers or processes, as the doctor does, is handed in.
"""
