"""What all tests share."""

from hypothesis import settings

# A busy CI machine makes a fast test slow; what must be bounded in time says so itself.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
