"""Defines the demo model in plain torch, with the parameter names and arithmetic of Hugging Face's Llama.

It is for training: whole sequences, no cache, no sampling.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one Llama; `head_dim` is fixed at 64."""

    vocab_size: int = 6144
    hidden_size: int = 256
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    intermediate_size: int = 704
    max_positions: int = 1024
    head_dim: int = 64
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each [max_positions, head_dim] with equal halves (the rotate_half convention)."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.max_positions).float(), shape.rope_theta**-exponent)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings to x [batch, heads, length, head_dim]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class ChunkedLoss(torch.autograd.Function):
    """Mean cross entropy of states @ weight.T; the forward pass also computes both gradients.

    The logits of one chunk fit in cache; all logits at once would take longer than the rest of the model.
    """

    CHUNK = 512

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Return the loss for states [tokens, hidden], weight [vocab, hidden], targets [tokens]."""
        work = torch.bfloat16 if states.dtype == torch.bfloat16 else torch.float32
        table = weight.to(work)
        total = torch.zeros(())
        d_states, d_weight = torch.empty_like(states), torch.zeros_like(weight)
        for start in range(0, len(states), ChunkedLoss.CHUNK):
            part = slice(start, start + ChunkedLoss.CHUNK)
            target = targets[part, None]
            log_p = (states[part] @ table.T).float().log_softmax(-1)
            total -= log_p.gather(1, target).sum()
            d_logits = log_p.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=torch.float32))
            d_logits = d_logits.to(work)
            d_states[part] = d_logits @ table
            d_weight += d_logits.T @ states[part]
        ctx.save_for_backward(d_states, d_weight)
        ctx.num_tokens = len(states)
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients that the forward pass kept, scaled."""
        d_states, d_weight = ctx.saved_tensors
        scale = grads[0] / ctx.num_tokens
        return d_states * scale.to(d_states.dtype), d_weight * scale, None


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within x [batch, length, hidden]."""
        batch, length, _ = x.shape
        q, k, v = (
            proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        # Plain products train faster on this kind of CPU than scaled_dot_product_attention at these lengths.
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.mT * self.head_dim**-0.5).masked_fill(future, float("-inf"))
        out = scores.float().softmax(-1).to(v.dtype) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """SwiGLU feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return down(silu(gate) * up)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after attention and the feed-forward."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """The decoder with tied embeddings; `state_dict` keys gain only the prefix `model.` on export."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.num_layers) ** 0.5 if is_output else 0.02)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the normalised final states [batch, length, hidden] for ids [batch, length]."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        if torch.is_autocast_enabled("cpu"):
            x, cos, sin = (t.bfloat16() for t in (x, cos, sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, length, vocab] for ids [batch, length]."""
        return F.linear(self.hidden(ids), self.embed_tokens.weight)

    def loss(self, ids: Tensor) -> Tensor:
        """Return the mean next-token loss over ids [batch, length + 1]."""
        return mean_loss(
            self.hidden(ids[:, :-1]).flatten(0, 1), self.embed_tokens.weight, ids[:, 1:].flatten()
        )


def mean_loss(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of states [tokens, hidden] @ weight.T against targets [tokens]."""
    loss: Tensor = ChunkedLoss.apply(states, weight, targets)  # type: ignore[no-untyped-call]
    return loss
