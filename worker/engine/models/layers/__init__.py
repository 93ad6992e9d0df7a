"""Layers that the models are made of: weights, and the operators they go through."""
