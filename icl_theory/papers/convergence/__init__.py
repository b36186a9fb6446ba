"""In-context convergence of transformers on balanced and imbalanced features."""
