"""In-context learning of the labels of a dictionary of features."""
