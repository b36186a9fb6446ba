"""Attention that finds the one token that tells the label."""
