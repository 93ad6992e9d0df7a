"""Define the outcomes of a request."""

from enum import StrEnum


class Outcome(StrEnum):
    """Final outcome of a Request. A Result never changes."""

    COMPLETED = "completed"
    FAILED = "failed"  # its own error: the rest of the batch goes on
    CANCELLED = "cancelled"  # its batch was cancelled or expired first
