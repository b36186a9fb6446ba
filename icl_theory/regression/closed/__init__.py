"""The exchangeable case with N = ∞ in closed form: steps, runs and the flow."""
