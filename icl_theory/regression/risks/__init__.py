"""The risks of regression: over class scores, groups, one number, and Gaussian inputs."""
