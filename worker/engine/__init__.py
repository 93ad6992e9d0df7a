"""Runs inference on one device: requests in, tokens out. Knows no queue, database, HTTP or settings."""

import os

# torch reads these once, at import. A waiting thread may spin for about 0.1 ms, longer than the gap between
# two operators, and must then sleep: threads that keep spinning lose whole time slices to other processes on
# the cores, and a batch takes up to ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
