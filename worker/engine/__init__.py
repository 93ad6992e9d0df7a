"""Runs inference on one device: requests in, tokens out. Knows no queue, database, HTTP or settings."""

import os

# torch reads these once, at import. A waiting thread may spin for about 0.03 ms, longer than the gap between
# two operators, and must then sleep: threads that keep spinning lose whole time slices to other processes on
# the cores, and a batch takes up to ten times as long. While Python runs between two Steps, the core of the
# other threads is free for the rest of the service (docs/decisions/0017-the-engine-gives-way-on-busy-cores.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
