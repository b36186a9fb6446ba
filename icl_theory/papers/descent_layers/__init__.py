"""Layers of linear attention as steps of descent, at any depth, on isotropic data."""
