"""Gaussian match-and-copy: softmax attention that finds the token a query matches."""
