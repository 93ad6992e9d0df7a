"""Reads the embeddings of tokens, whose weight the head may share, and finds a head's largest logits."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.panel_argmax import panel_argmax
from kernels.product_chain import PanelWeight
from kernels.product_chain import rows_of as rows_of_panels
from kernels.quantization import Int8Weight, QuantizedWeight
from kernels.weight_only_linear import TiledWeight, rows_of, weight_only_argmax
from worker.engine.models.layers.linear import ChainedLinear, Projection
from worker.engine.models.layers.quantized_linear import WeightOnlyLinear

# Returns float32 [num_tokens, hidden] for token ids [num_tokens].
Embedding = Callable[[Tensor], Tensor]
# Returns int64 [num_rows] for hidden states [num_rows, hidden]; -1 where the largest logit is not finite.
Argmax = Callable[[Tensor], Tensor]


def table_embedding(table: Tensor) -> Embedding:
    """Return the embedding that reads rows of floats [vocab_size, hidden]."""
    return partial(_rows_of_table, table)


def shared_embedding(head: Projection, weight: Tensor | QuantizedWeight) -> Embedding:
    """Return the embedding that reads what `head` multiplies by, or else the `weight` it was made of."""
    if isinstance(head, ChainedLinear) and isinstance(head.weight, PanelWeight):
        return partial(rows_of_panels, head.weight)
    if isinstance(head, WeightOnlyLinear) and isinstance(head.weight, TiledWeight):
        return partial(rows_of, head.weight)
    if isinstance(weight, Int8Weight):
        return partial(_rows_of_levels, weight)
    return table_embedding(weight if isinstance(weight, Tensor) else weight.dequantize())


def argmax_of(head: Projection) -> Argmax | None:
    """Return what finds the first largest of a head's outputs without writing them; None if it cannot."""
    if isinstance(head, ChainedLinear):
        return partial(panel_argmax, weight=head.weight)
    if isinstance(head, WeightOnlyLinear) and isinstance(head.weight, TiledWeight):
        return partial(weight_only_argmax, weight=head.weight)
    return None


def _rows_of_table(table: Tensor, token_ids: Tensor) -> Tensor:
    return F.embedding(token_ids, table).float()


def _rows_of_levels(weight: Int8Weight, token_ids: Tensor) -> Tensor:
    return weight.levels[token_ids].float() * weight.scales[token_ids].unsqueeze(1)
