"""Many points of a sweep at once, each with the results of a single simulation."""
