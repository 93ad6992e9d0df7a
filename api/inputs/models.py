"""Finds the checkpoint of the model that a client names."""

from api.errors import ModelNotFoundError
from api.inputs.checkpoint import Checkpoint


def find_checkpoint(checkpoint: Checkpoint, model: str, path: str = "") -> Checkpoint:
    """Return the checkpoint, this one or one beside it, of the model of this name.

    Raises:
        ModelNotFoundError: no served model has this name; `param` is that of the field at `path`.

    """
    found = checkpoint.named(model)
    if found is None:
        param = f"{path}.model" if path else "model"
        served = ", ".join(repr(one.name) for one in checkpoint.served)
        raise ModelNotFoundError(
            f"{param}: this server does not serve {model[:100]!r}; it serves {served}."
            " HEADRACE_MODEL_ALIASES can give that another name.",
            param=param,
            code="model_not_found",
        )
    return found
