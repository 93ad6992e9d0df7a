"""Everything the engine raises.

EngineError
├── ConfigError                 an EngineConfig field cannot be honoured
├── CheckpointError             a checkpoint's file or key is missing or wrong
│   ├── UnsupportedModelError   the architecture or one of its options is not built
│   ├── MissingTensorError
│   └── TensorShapeError
├── InvalidRequestError         one request cannot run; the engine reports it as that request's outcome
│   └── TooLongError            it has more tokens than the model takes
├── OutOfMemoryError            a Step did not fit the device's memory; a smaller one may
├── OutOfBlocksError            more Blocks were asked of the pool than it has free
├── IntegrityError              the pool's own books disagree
├── EngineStoppedError          the engine's thread takes no more work
└── EngineFailedError           a Step raised; the cause is chained
"""

from pathlib import Path


class EngineError(Exception):
    """Root of the tree."""


class ConfigError(EngineError):
    """An EngineConfig field cannot be honoured."""


class CheckpointError(EngineError):
    """A checkpoint's file or key is missing or wrong."""

    def __init__(self, file: Path, key: str, problem: str) -> None:
        where = f"{file}: {key}: " if key else f"{file}: "
        super().__init__(where + problem)
        self.file = file
        self.key = key


class UnsupportedModelError(CheckpointError):
    """The architecture or one of its options is not built."""


class MissingTensorError(CheckpointError):
    """The checkpoint has no tensor of this name."""


class TensorShapeError(CheckpointError):
    """A tensor's shape is not what config.json implies."""


class InvalidRequestError(EngineError):
    """One request cannot run."""


class TooLongError(InvalidRequestError):
    """A request has more tokens than the model takes."""


class OutOfMemoryError(EngineError):
    """A Step did not fit the device's memory; a smaller one may."""


class OutOfBlocksError(EngineError):
    """More Blocks were asked of the pool than it has free."""


class IntegrityError(EngineError):
    """The pool's own books disagree."""


class EngineStoppedError(EngineError):
    """The engine's thread takes no more work."""


class EngineFailedError(EngineError):
    """A Step raised; the cause is chained."""
