"""Induction heads: two layers of attention on Markov chains."""
