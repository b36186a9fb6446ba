"""Softmax attention over random tokens: exact losses and gradients."""
