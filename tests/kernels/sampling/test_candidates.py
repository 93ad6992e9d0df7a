import pytest
import torch

from kernels.sampling import likeliest
from kernels.sampling.cpu import CHUNK

SIZES = (5, CHUNK, CHUNK + 1, 5 * CHUNK - 3, 6144)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_they_are_the_largest_in_order_with_their_probabilities(vocab_size: int, threads: int) -> None:
    logits = torch.randn(9, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    logits[1] += 300
    expected, before = logits.softmax(dim=-1).topk(5), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tokens, shares = likeliest(logits.clone(), 5)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(tokens, expected.indices)
    torch.testing.assert_close(shares, expected.values)


def test_rows_may_have_a_gap() -> None:
    wide = torch.full((4, 203), 50.0)
    logits = wide[:, :200] = torch.randn(4, 200, generator=torch.Generator().manual_seed(3))
    assert torch.equal(likeliest(wide[:, :200], 4)[0], logits.topk(4).indices)
    assert (wide[:, 200:] == 50).all()


def test_all_of_a_row_may_be_asked_for() -> None:
    tokens, shares = likeliest(torch.tensor([[1.0, 3.0, 2.0]]), 3)
    assert tokens.tolist() == [[1, 2, 0]]
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0))


def test_of_equal_ones_the_lower_token_comes_first() -> None:
    logits = torch.zeros(1, 3 * CHUNK)
    logits[0, [2 * CHUNK + 7, CHUNK + 2, CHUNK + 1]] = 4.0
    assert likeliest(logits, 4)[0].tolist() == [[CHUNK + 1, CHUNK + 2, 2 * CHUNK + 7, 0]]


def test_what_is_not_finite_has_no_token() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    logits[1, 7], logits[2, 8] = torch.nan, torch.inf
    logits[3] = -torch.inf
    logits[4], logits[4, 9] = -torch.inf, 0.0
    tokens, shares = likeliest(logits, 3)
    assert (tokens[0] >= 0).all()
    assert tokens[1:].tolist() == [[-1] * 3, [-1] * 3, [-1] * 3, [9, -1, -1]]
    assert shares[1:].tolist() == [[0.0] * 3, [0.0] * 3, [0.0] * 3, [1.0, 0.0, 0.0]]


def test_arguments_are_checked() -> None:
    logits = torch.zeros(2, 40)
    for given, count in ((logits.double(), 2), (logits.T, 2), (logits, 0), (logits, 41)):
        with pytest.raises(ValueError, match="likeliest"):
            likeliest(given, count)
    assert likeliest(logits[:0], 3)[0].shape == (0, 3)
