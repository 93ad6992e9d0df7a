"""Define how a request ends, and how an output does."""

from enum import StrEnum


class Outcome(StrEnum):
    """Final outcome of a Request. A Result never changes."""

    COMPLETED = "completed"
    FAILED = "failed"  # its own error: the rest of the batch goes on
    CANCELLED = "cancelled"  # its batch was cancelled or expired first


class FinishReason(StrEnum):
    """Reason why an output ended."""

    STOP = "stop"  # an end token, a stop string, or a complete format
    LENGTH = "length"  # max_tokens, or the model's context is full
    CANCELLED = "cancelled"  # its request was cancelled
    ERROR = "error"  # its request could not run or could not finish
