"""Trainers on sampled prompts, and comparisons of exact results with them."""
