import pytest
import torch
from torch import Tensor

from kernels.gate_mul import silu_mul
from kernels.product_chain import is_available
from kernels.quantization import quantize_int8
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.testing import assert_matches
from worker.engine.models.layers.attention import Attention
from worker.engine.models.layers.decoder_layer import DecoderLayer
from worker.engine.models.layers.layer_end import ChainedEnd, SeparateEnd, layer_end
from worker.engine.models.layers.linear import Int8Linear, Linear, Projection, int8_projection
from worker.engine.models.layers.mlp import Gated, GatedMlp, Mlp

EPS, ATTENTION, HIDDEN, WIDTH = 1e-5, 24, 32, 72
needs_chains = pytest.mark.skipif(not is_available(), reason="needs int8 in chains")


def projection(out_features: int, in_features: int) -> Projection:
    weight = torch.randn(out_features, in_features) / in_features**0.5
    return int8_projection(quantize_int8(weight), torch.randn(out_features), torch.float32)


def layer(activation: str, *, has_post_norms: bool, mlp: Mlp | None = None) -> DecoderLayer:
    norms = [torch.rand(HIDDEN) + 0.5 if has_post_norms else None for _ in range(2)]
    gated = Gated(projection(2 * WIDTH, HIDDEN), activation)
    return DecoderLayer(
        torch.rand(HIDDEN),
        Attention(projection(3 * ATTENTION, HIDDEN), scale=1.0),
        projection(HIDDEN, ATTENTION),
        norms[0],
        torch.rand(HIDDEN) + 0.5,
        mlp or GatedMlp(gated, projection(HIDDEN, WIDTH)),
        norms[1],
    )


@needs_chains
@pytest.mark.parametrize("is_last", [True, False], ids=["last", "inner"])
@pytest.mark.parametrize("has_post_norms", [True, False], ids=["post", "plain"])
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_a_chain_computes_what_its_operators_do(activation: str, has_post_norms: bool, is_last: bool) -> None:
    torch.manual_seed(0)
    one, norm = layer(activation, has_post_norms=has_post_norms), torch.rand(HIDDEN) + 0.5
    qkv = None if is_last else projection(3 * ATTENTION, HIDDEN)
    chained, separate = layer_end(one, norm, qkv, EPS), SeparateEnd(one, norm, qkv, EPS)
    assert isinstance(chained, ChainedEnd)
    x, residual = torch.randn(3, ATTENTION), torch.randn(3, HIDDEN)
    total = residual.clone()
    assert_matches(chained(x, residual), separate(x, total))
    assert_matches(residual, total)


def test_the_operators_follow_each_other_in_the_order_of_the_model() -> None:
    torch.manual_seed(0)
    one, norm = layer("silu", has_post_norms=True), torch.rand(HIDDEN)
    x, residual = torch.randn(3, ATTENTION), torch.randn(3, HIDDEN)
    total = residual.clone()
    assert isinstance(one.mlp, GatedMlp)
    assert isinstance(one.mlp.gated, Gated)
    assert one.attention_post_norm is not None
    assert one.mlp_post_norm is not None
    hidden = add_rms_norm(
        rms_norm(one.attention_out(x), one.attention_post_norm, EPS), total, one.mlp_norm, EPS
    )
    hidden = one.mlp.down(silu_mul(one.mlp.gated.gate_up(hidden)))
    expected = add_rms_norm(rms_norm(hidden, one.mlp_post_norm, EPS), total, norm, EPS)
    assert torch.equal(SeparateEnd(one, norm, None, EPS)(x, residual), expected)
    assert torch.equal(residual, total)


def test_what_is_not_all_int8_is_no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = torch.rand(HIDDEN)

    def double(x: Tensor) -> Tensor:
        return 2 * x

    mixture = layer("silu", has_post_norms=False, mlp=double)
    assert isinstance(layer_end(mixture, norm, None, EPS), SeparateEnd)
    dense = layer("silu", has_post_norms=False)
    assert isinstance(layer_end(dense, norm, Linear(torch.ones(4, HIDDEN)), EPS), SeparateEnd)
    monkeypatch.setattr("worker.engine.models.layers.linear.is_available", lambda: False)
    assert isinstance(projection(4, 4), Int8Linear)
    assert isinstance(layer_end(layer("silu", has_post_norms=False), norm, None, EPS), SeparateEnd)
