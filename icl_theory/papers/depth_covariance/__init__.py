"""Layers of linear attention on data with any covariance, at one to six layers."""
