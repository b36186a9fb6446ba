from .families.linear_attention import *  # noqa: F403
