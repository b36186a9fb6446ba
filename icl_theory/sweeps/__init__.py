"""Sweeps: grids of points, which any executor evaluates and a store keeps on disk.

No module here depends on a particular family.
"""
