"""Runs a packed Step through the decoder that all model families share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.kv_write import PagedCache
from kernels.rms_norm import rms_norm
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layers.attention_layers import attention_layers
from worker.engine.models.layers.decoder_layer import DecoderLayer
from worker.engine.models.layers.ends import Embedding, argmax_of
from worker.engine.models.layers.layer_end import layer_end
from worker.engine.models.layers.linear import Projection
from worker.engine.models.layers.rotary_embedding import RopeScaling, rotary_angles
from worker.engine.models.step_input import StepInput


class Decoder:
    """Decoder of a model; keeps no state between Steps."""

    def __init__(
        self,
        config: DecoderConfig,
        embedding: Embedding,
        embedding_scale: float | None,
        layers: list[DecoderLayer],
        norm: Tensor,
        head: Projection,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        norms = [layer.attention_norm for layer in layers[1:]]
        products = [layer.attention.qkv for layer in layers[1:]]
        # Each layer's end, with the start of the next one.
        *ends, self._end = [
            layer_end(layer, after, qkv, config.norm_eps)
            for layer, after, qkv in zip(layers, [*norms, norm], [*products, None], strict=True)
        ]
        self._head = head
        # A soft cap may make two logits equal.
        self._argmax = argmax_of(head) if config.logit_soft_cap is None else None
        self._dtype = dtype  # of activations between products; the residual is float32
        self._embedding_scale = embedding_scale
        angles = rotary_angles(config.head_dim, max_model_len, config.rope_theta, config.rope_scaling)
        angles = local = angles.to(device)
        if config.local_rope_theta is not None:
            local = rotary_angles(config.head_dim, max_model_len, config.local_rope_theta, RopeScaling())
            local = local.to(device)
        attentions = [layer.attention for layer in layers]
        self._to_last_attention = attention_layers(
            attentions, [angles if one.window is None else local for one in attentions], ends
        )

    def forward(self, step: StepInput, kv_cache: Sequence[PagedCache]) -> Tensor:
        """Run a Step, writing keys and values, and return the final hidden states of its output rows.

        The result is [num_outputs, hidden]: all rows, or `step.output_rows`. These are selected right after
        the last layer's attention, because nothing reads the other rows after it.
        """
        residual = self._embedding(step.token_ids)
        if self._embedding_scale is not None:
            residual.mul_(self._embedding_scale)
        first = self._layers[0]
        x = first.attention.qkv(rms_norm(residual, first.attention_norm, self.config.norm_eps, self._dtype))
        x = self._to_last_attention(x, residual, kv_cache, step)
        if step.output_rows is not None:
            if not len(step.output_rows):
                return x[:0]  # a chunk inside a prompt: only its keys and values were needed
            x = x.index_select(0, step.output_rows)
            residual = residual.index_select(0, step.output_rows)
        return self._end(x, residual)

    @property
    def is_one_region(self) -> bool:
        """Whether all layers up to the last attention are one parallel region on a CPU."""
        return self._to_last_attention.is_one_region

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings of tokens, float32 [num_tokens, hidden], without the model's scale."""
        return self._embedding(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [num_outputs, vocab_size] of hidden states from `forward`."""
        # As the search for the largest one takes them, for the same bits.
        logits = self._head(hidden if self._argmax is None else hidden.float())
        cap = self.config.logit_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def likeliest(self, hidden: Tensor) -> Tensor | None:
        """Return the token of each row's largest logit, int64 [num_outputs], or None if it takes the logits.

        It is -1 where that logit is not finite.
        """
        return None if self._argmax is None else self._argmax(hidden)
