"""Defines all exceptions that the engine raises.

EngineError
├── ConfigError                 an EngineConfig field is invalid or not supported here
├── CheckpointError             a checkpoint's file or key is missing or wrong
│   ├── UnsupportedModelError   the architecture or one of its options is not implemented
│   ├── MissingTensorError
│   └── TensorShapeError
├── InvalidRequestError         one request cannot run; the engine reports it as that request's outcome
│   └── TooLongError            it has more tokens than the model takes
├── OutOfMemoryError            a Step did not fit the device's memory; a smaller one may
├── OutOfBlocksError            more Blocks were requested than the pool has free
├── IntegrityError              the Block pool's records are inconsistent
├── EngineStoppedError          the engine's thread takes no more work
└── EngineFailedError           a Step raised; the cause is chained
"""

from pathlib import Path


class EngineError(Exception):
    """Base class of all errors of the engine."""


class ConfigError(EngineError):
    """An EngineConfig field is invalid or not supported here."""


class CheckpointError(EngineError):
    """A checkpoint's file or key is missing or wrong."""

    def __init__(self, file: Path, key: str, problem: str) -> None:
        where = f"{file}: {key}: " if key else f"{file}: "
        super().__init__(where + problem)
        self.file = file
        self.key = key


class UnsupportedModelError(CheckpointError):
    """The architecture or one of its options is not implemented."""


class MissingTensorError(CheckpointError):
    """The checkpoint has no tensor of this name."""


class TensorShapeError(CheckpointError):
    """A tensor's shape differs from the one that config.json implies."""


class InvalidRequestError(EngineError):
    """One request cannot run; the engine reports the error as that request's outcome."""


class TooLongError(InvalidRequestError):
    """A request has more tokens than the model takes."""


class OutOfMemoryError(EngineError):
    """A Step did not fit the device's memory; a smaller one may."""


class OutOfBlocksError(EngineError):
    """More Blocks were requested than the pool has free."""


class IntegrityError(EngineError):
    """The Block pool's records are inconsistent."""


class EngineStoppedError(EngineError):
    """The engine's thread takes no more work."""


class EngineFailedError(EngineError):
    """A Step raised; the cause is chained."""
