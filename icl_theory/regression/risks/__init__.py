"""Risks over class scores, groups or one number, and for Gaussian inputs."""
