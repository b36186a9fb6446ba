"""Many points of a sweep at once, with the results that single simulations give."""
