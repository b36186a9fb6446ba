from .papers.linear_attention import *  # noqa: F403
