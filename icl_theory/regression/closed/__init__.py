"""The exchangeable case with N = ∞ in closed form: numbers of steps, runs, and the flow."""
