"""One layer of attention on a Markov chain that is the same in every prompt."""
