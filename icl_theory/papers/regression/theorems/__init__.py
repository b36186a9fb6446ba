"""What is proved or claimed of a run: bounds, orders of magnitude, tails, and the sums they are checked with."""
