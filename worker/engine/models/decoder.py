"""Runs a packed Step through the decoder that all model families share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.kv_write import PagedCache
from kernels.rms_norm import add_rms_norm, rms_norm
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layers.attention import Attention
from worker.engine.models.layers.linear import Projection
from worker.engine.models.layers.mlp import Mlp
from worker.engine.models.layers.rotary_embedding import RopeScaling, rotary_angles
from worker.engine.models.step_input import StepInput


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer."""

    attention_norm: Tensor
    attention: Attention
    attention_out: Projection
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    mlp: Mlp
    mlp_post_norm: Tensor | None


class Decoder:
    """Decoder of a model; keeps no state between Steps."""

    def __init__(
        self,
        config: DecoderConfig,
        embedding: Tensor,
        layers: list[DecoderLayer],
        norm: Tensor,
        head: Projection,
        max_model_len: int,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._dtype = dtype  # of activations between products; the residual is float32
        self._embedding_scale: float | None = None
        if config.embedding_scale is not None:
            # Rounded to the dtype, as in training.
            self._embedding_scale = torch.tensor(config.embedding_scale, dtype=embedding.dtype).item()
        device = embedding.device
        angles = rotary_angles(config.head_dim, max_model_len, config.rope_theta, config.rope_scaling)
        # Rotary angles, by the layer's window.
        self._angles = dict.fromkeys(set(config.windows), angles.to(device))
        if config.local_rope_theta is not None:
            local = rotary_angles(config.head_dim, max_model_len, config.local_rope_theta, RopeScaling())
            local = local.to(device)
            self._angles |= {window: local for window in self._angles if window is not None}

    def forward(self, step: StepInput, kv_cache: Sequence[PagedCache]) -> Tensor:
        """Run a Step, writing keys and values, and return the final hidden states of its output rows.

        The result is [num_outputs, hidden]: all rows, or `step.output_rows`. These are selected right after
        the last layer's attention, because nothing reads the other rows after it.
        """
        eps = self.config.norm_eps
        residual = F.embedding(step.token_ids, self._embedding).float()
        if self._embedding_scale is not None:
            residual.mul_(self._embedding_scale)
        x = rms_norm(residual, self._layers[0].attention_norm, eps, self._dtype)
        last = len(self._layers) - 1
        for index, (layer, cache) in enumerate(zip(self._layers, kv_cache, strict=True)):
            x = layer.attention(x, self._angles[layer.attention.window], cache, step)
            if index == last and step.output_rows is not None:
                if not len(step.output_rows):
                    return x[:0]  # a chunk inside a prompt: only its keys and values were needed
                x = x.index_select(0, step.output_rows)
                residual = residual.index_select(0, step.output_rows)
            x = layer.attention_out(x)
            if layer.attention_post_norm is not None:
                x = rms_norm(x, layer.attention_post_norm, eps)
            x = layer.mlp(add_rms_norm(x, residual, layer.mlp_norm, eps))
            if layer.mlp_post_norm is not None:
                x = rms_norm(x, layer.mlp_post_norm, eps)
            norm = self._norm if index == last else self._layers[index + 1].attention_norm
            x = add_rms_norm(x, residual, norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [num_outputs, vocab_size] of hidden states from `forward`."""
        logits = self._head(hidden)
        cap = self.config.logit_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
