"""Layers of the models: weights and the operators applied to them."""
