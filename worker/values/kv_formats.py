"""Says how keys and values are stored where no setting does."""


def default_kv_format(device: str, dtype: str) -> str:
    """Return `int8` on a CPU, unless all is computed in float32 there, else `plain`: as activations are."""
    return "int8" if device == "cpu" and dtype != "f32" else "plain"
