"""How a request ended."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a Request ended. A Result never changes."""

    COMPLETED = "completed"
    FAILED = "failed"  # its own error: the rest of the batch goes on
    CANCELLED = "cancelled"  # its batch was cancelled or expired first
