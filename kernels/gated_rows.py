"""Orders the rows of a gated weight so that gate and up alternate and a product can gate its own sums."""

from torch import Tensor


def check_rows(op: str, out_features: int, bias: Tensor | None, *, is_gated: bool) -> None:
    """Raise ValueError naming the op when the bias does not fit, or the rows of a gated weight are odd."""
    if bias is not None and bias.shape != (out_features,):
        raise ValueError(f"{op}: bias is {tuple(bias.shape)}, not {(out_features,)}")
    if is_gated and out_features % 2:
        raise ValueError(f"{op}: {out_features} rows cannot be halved into gate and up")


def interleaved(tensor: Tensor, num_parts: int = 1) -> Tensor:
    """Return the rows so that gate and up alternate; each of `num_parts` parts had gate first, then up."""
    parts = tensor.reshape(num_parts, 2, -1, *tensor.shape[1:])
    return parts.transpose(1, 2).flatten(0, 2)
