"""Says how keys and values are stored where no setting does."""


def default_kv_format(device: str, dtype: str) -> str:
    """Return `int8` on a CPU whose products are int8, else `plain`: as activations are."""
    return "int8" if device == "cpu" and dtype == "int8" else "plain"
