from .papers.recall import *  # noqa: F403
