"""Grids of points of any model: laid out, evaluated on any executor, kept on disk.

Nothing here knows a model.
"""
