"""Theorems about a run: bounds, orders of magnitude, tails, and sums to check them.

`checks` evaluates all of them on one run.
"""
