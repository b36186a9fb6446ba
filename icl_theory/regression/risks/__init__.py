"""The risks of regression: class scores, groups, one number, Gaussian inputs."""
