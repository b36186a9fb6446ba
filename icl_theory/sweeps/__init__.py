"""Sweeps: grids of points that any executor evaluates, and stores of them on disk.

No module here depends on a particular family.
"""
