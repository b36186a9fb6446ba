"""In-context convergence of transformers on balanced and unbalanced features."""
