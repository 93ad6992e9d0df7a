"""How long batches take and outputs become, learned from those before. Knows no HTTP."""
