"""Shows how many workers are wanted, to whoever starts and stops them."""
