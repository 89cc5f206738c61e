"""What every process needs before it does anything: settings, logs, clocks, places in logs, children, Java.

Enters: the domain.
"""
