from .families.regression import *  # noqa: F403
