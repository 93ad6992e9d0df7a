"""Llama: its forward over a packed Step, and its weights from a checkpoint."""

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.silu_mul import silu_mul
from worker.engine.input_builder import StepInput
from worker.engine.layers.attention import Attention
from worker.engine.layers.linear import Projection
from worker.engine.layers.rotary_embedding import RotaryEmbedding
from worker.engine.models.checkpoint import Weights
from worker.engine.models.llama_config import LlamaConfig


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One decoder layer's weights."""

    attention_norm: Tensor
    attention: Attention
    attention_out: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


class LlamaModel:
    """A Llama decoder; holds no state between Steps."""

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Tensor,
        layers: list[LlamaLayer],
        norm: Tensor,
        head: Projection,
        max_model_len: int,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = RotaryEmbedding(
            config.head_dim, max_model_len, config.rope_theta, config.rope_scaling, embedding.dtype
        )

    def forward(self, step: StepInput, kv_cache: list[Tensor]) -> Tensor:
        """Run a Step, writing keys and values, and return the final hidden state of its output rows.

        The result is [num_outputs, hidden]: all rows, or `step.output_rows`. Those rows are picked out as
        soon as the last layer's attention is done, since nothing reads the others any more.
        """
        eps = self.config.norm_eps
        angles = self._rotary(step.positions)
        residual = F.embedding(step.token_ids, self._embedding)
        x = rms_norm(residual, self._layers[0].attention_norm, eps)
        last = len(self._layers) - 1
        for index, (layer, cache) in enumerate(zip(self._layers, kv_cache, strict=True)):
            x = layer.attention(x, angles, cache, step)
            if index == last and step.output_rows is not None:
                if not len(step.output_rows):
                    return x[:0]  # a chunk in the middle of a prompt: its keys and values were all it was for
                x = x.index_select(0, step.output_rows)
                residual = residual.index_select(0, step.output_rows)
            x = add_rms_norm(layer.attention_out(x), residual, layer.mlp_norm, eps)
            x = layer.down(silu_mul(layer.gate_up(x)))
            norm = self._norm if index == last else self._layers[index + 1].attention_norm
            x = add_rms_norm(x, residual, norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [num_outputs, vocab_size] for the hidden states of `forward`."""
        return self._head(hidden)


def load_llama(config: LlamaConfig, weights: Weights, max_model_len: int) -> LlamaModel:
    """Build a Llama from its checkpoint, QKV and gate-up each fused into one weight."""
    hidden = config.hidden_size
    embedding = weights.take("model.embed_tokens.weight", config.vocab_size, hidden)
    layers = [_load_layer(config, weights, f"model.layers.{index}") for index in range(config.num_layers)]
    norm = weights.take("model.norm.weight", hidden)
    head = weights.head(embedding, is_tied=config.has_tied_embeddings)
    return LlamaModel(config, embedding, layers, norm, head, max_model_len)


def _load_layer(config: LlamaConfig, weights: Weights, prefix: str) -> LlamaLayer:
    hidden, width = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def linear(names: list[str], rows: list[int], columns: int, *, has_bias: bool) -> Projection:
        return weights.linear([f"{prefix}.{name}" for name in names], rows, columns, has_bias=has_bias)

    return LlamaLayer(
        attention_norm=weights.take(f"{prefix}.input_layernorm.weight", hidden),
        attention=Attention(
            linear(
                ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                [query, key, key],
                hidden,
                has_bias=config.has_attention_bias,
            ),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        ),
        attention_out=linear(["self_attn.o_proj"], [hidden], query, has_bias=config.has_attention_bias),
        mlp_norm=weights.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=linear(
            ["mlp.gate_proj", "mlp.up_proj"], [width, width], hidden, has_bias=config.has_mlp_bias
        ),
        down=linear(["mlp.down_proj"], [hidden], width, has_bias=config.has_mlp_bias),
    )
