"""Pretraining and test tasks of different covariance, at finite size."""
