"""In-context regression on the sphere, with one attention window."""
