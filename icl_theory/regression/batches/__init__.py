"""Many points of a sweep at once: with infinite prompts, finite ones, and over K x K scores."""
