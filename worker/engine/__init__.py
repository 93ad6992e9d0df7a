"""Pure inference: tokens in, tokens out. Knows no queue, database, HTTP or settings."""

import os

# Read once, when torch is imported. Threads that wait for each other must sleep soon: spinning ones lose
# whole time slices to any other process on the cores, and a batch takes up to ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
