"""Trainers on sampled prompts, and the exact results compared with them."""
