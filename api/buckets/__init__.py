"""Reach the buckets of customers, as the operator allows them."""
