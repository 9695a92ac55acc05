"""Lookups, alone and grouped, and their gradients. What an optimizer does with a gradient is in training."""
