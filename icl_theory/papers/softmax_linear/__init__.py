"""Softmax attention over Gaussian tokens, which tends to a linear map."""
