"""Time limits of single examples are off: on a busy machine they fail because of the machine, not of the code."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
