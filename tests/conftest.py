"""What all tests share."""

from hypothesis import settings

# A busy machine makes an example slow, not wrong.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
