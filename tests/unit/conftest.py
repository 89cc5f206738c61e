"""Time limits of single examples are off: on a busy machine they fail for its sake, not for the code's."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
