from .families.recall import *  # noqa: F403
