"""Run batches on workers: a durable queue, a token-level scheduler and signed webhooks."""

import gc

# Imports make several hundred thousand objects that stay. Python's own threshold, 700 new ones, makes the
# collector look at all of them again and again: 0.6 to 1.1 of the 5.5 s in which a gpu worker imports.
gc.set_threshold(50_000)
