"""What all tests have in common: Hypothesis without a deadline, since a slow machine is no failure."""

from hypothesis import settings

settings.register_profile("streamloop", deadline=None)
settings.load_profile("streamloop")
