"""Pure inference: tokens in, tokens out. Knows no queue, database, HTTP or settings."""

import os

# Read once, when torch is imported. A thread that waits for another may spin for about 0.1 ms, longer than
# the gap between two operators, and must then sleep: threads that spin on lose whole time slices to any
# other process on the cores, and a batch takes up to ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
