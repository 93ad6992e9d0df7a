"""Chooses the next tokens of all Sequences of a Step at once.

Each token is drawn by one uniform number, a hash of the Sequence's seed and the token's position: the chosen
token is where the cumulative distribution passes that number. So, for equal logits, a seed gives the same
tokens in any batch, after a preemption, and in any order of Steps.
"""

from collections.abc import Sequence as Sequences
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernels import device
from kernels.sampling import draw
from kernels.sampling import sample as sample_on_gpu
from worker.engine.sequences.sequence import Sequence
from worker.values.logprobs import TokenLogprob

NUM_CANDIDATES = 256  # likeliest tokens that top-k and top-p look at first
# What the numbers are made with; uint64 from the beginning, as numpy takes a microsecond to convert one.
_WEYL = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE, _DROPPED = np.uint64(1), np.uint64(11)


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """Sampling options of each output row, as tensors; a greedy row has temperature 0."""

    temperature: Tensor  # [num_outputs] float32
    top_k: Tensor  # [num_outputs] int64, vocabulary-sized when off
    top_p: Tensor  # [num_outputs] float32
    min_p: Tensor  # [num_outputs] float32
    uniform: Tensor  # [num_outputs] float64 in [0, 1)
    greedy_rows: Tensor  # int64
    plain_rows: Tensor  # int64, rows drawn from the whole distribution (min-p allowed)
    filtered_rows: Tensor  # int64, rows with top-k or top-p


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return one number in [0, 1) for each (seed, position), both uint64; seeds are as `mixed` returns them.

    Together they apply the splitmix64 output function over a Weyl sequence twice, so that neighbouring seeds
    give unrelated numbers.
    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = _mix(seeds + (positions + _ONE) * _WEYL)
    numbers: np.ndarray = (state >> _DROPPED).astype(np.float64) * 2.0**-53
    return numbers


def mixed(seeds: np.ndarray) -> np.ndarray:
    """Return seeds as `uniforms` takes them: the part of its work that is the same for all positions."""
    return _mix(seeds + _WEYL)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> _SHIFTS[0])) * _FACTORS[0]
    z = (z ^ (z >> _SHIFTS[1])) * _FACTORS[1]
    result: np.ndarray = z ^ (z >> _SHIFTS[2])
    return result


class SamplingInputs:
    """Builds the options of Steps; of one with the rows of the Step before, only what a token changes."""

    def __init__(self) -> None:
        self._before: SamplingInput | None = None
        self._sequences: tuple[Sequence, ...] = ()  # of its rows
        self._seeds = np.empty(0, dtype=np.uint64)  # theirs, mixed

    def build(
        self, sequences: tuple[Sequence, ...], ahead: Sequences[tuple[int, ...]] = ()
    ) -> SamplingInput | None:
        """Return the options of a Step's output rows; None when all are greedy.

        `ahead` is as for `apply_rules`.
        """
        if all(sequence.is_greedy for sequence in sequences):
            return None
        positions = np.array(
            [len(sequence.token_ids) + sequence.num_pending_tokens for sequence in sequences],
            dtype=np.uint64,
        )
        if ahead:
            positions += np.array([len(guesses) for guesses in ahead], dtype=np.uint64)
        if self._before is None or sequences != self._sequences:
            self._sequences = sequences
            self._seeds = mixed(np.array([one.seed for one in sequences], dtype=np.uint64))
            self._before = _options_of(sequences)
        return replace(self._before, uniform=torch.from_numpy(uniforms(self._seeds, positions)))


def build_sampling_input(
    sequences: Sequences[Sequence], ahead: Sequences[tuple[int, ...]] = ()
) -> SamplingInput | None:
    """Return the options of these rows as `SamplingInputs` does."""
    return SamplingInputs().build(tuple(sequences), ahead)


def _options_of(sequences: Sequences[Sequence]) -> SamplingInput:
    """Return the options of rows, without the numbers that their tokens are drawn by."""
    params = [sequence.params for sequence in sequences]
    greedy: list[int] = []
    plain: list[int] = []
    filtered: list[int] = []
    for row, one in enumerate(params):
        (greedy if one.is_greedy else filtered if one.top_k or one.top_p < 1 else plain).append(row)
    return SamplingInput(
        temperature=torch.tensor([one.temperature for one in params], dtype=torch.float32),
        top_k=torch.tensor([one.top_k or 2**31 for one in params]),
        top_p=torch.tensor([one.top_p for one in params], dtype=torch.float32),
        min_p=torch.tensor([one.min_p for one in params], dtype=torch.float32),
        uniform=torch.empty(0, dtype=torch.float64),
        greedy_rows=torch.tensor(greedy, dtype=torch.int64),
        plain_rows=torch.tensor(plain, dtype=torch.int64),
        filtered_rows=torch.tensor(filtered, dtype=torch.int64),
    )


def sample(logits: Tensor, sampling: SamplingInput | None) -> list[int]:
    """Return the chosen token of each row of `logits` [num_outputs, vocab_size]."""
    if device.uses_triton(logits):
        return _on_host(sample_on_device(logits, sampling))
    logits = logits.float()  # argmax over bfloat16 takes four times as long on a CPU
    if sampling is None:
        return _on_host(logits.argmax(dim=-1))
    if len(sampling.plain_rows) == len(logits):
        return _on_host(draw(logits, sampling.temperature, sampling.min_p, sampling.uniform))
    chosen = torch.empty(len(logits), dtype=torch.int64)
    if len(sampling.greedy_rows):  # argmax takes longer than to draw
        chosen[sampling.greedy_rows] = logits[sampling.greedy_rows].argmax(dim=-1)
    if len(sampling.plain_rows):
        rows = sampling.plain_rows
        options = (sampling.temperature[rows], sampling.min_p[rows], sampling.uniform[rows])
        chosen[rows] = draw(logits[rows], *options)
    if len(sampling.filtered_rows):
        rows = sampling.filtered_rows
        chosen[rows] = _sample_filtered(_scaled(logits, sampling, rows), sampling, rows, NUM_CANDIDATES)
    return _on_host(chosen)


def _scaled(logits: Tensor, sampling: SamplingInput, rows: Tensor) -> Tensor:
    """Return these rows divided by their temperatures."""
    own = logits if len(rows) == len(logits) else logits[rows]
    return own / sampling.temperature[rows].unsqueeze(1)


def sample_on_device(logits: Tensor, sampling: SamplingInput | None) -> Tensor:
    """Return the chosen token of each row, int64 [num_outputs], on the GPU and without waiting for it.

    A row whose largest logit is NaN or infinite gets -1.
    """
    is_sound = logits.amax(dim=-1).isfinite()
    return _sampled_on_device(logits, sampling).where(is_sound, -1)


def _sampled_on_device(logits: Tensor, sampling: SamplingInput | None) -> Tensor:
    if sampling is None:
        return logits.argmax(dim=-1)
    columns = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.uniform)
    # One copy for all columns. Each starts at a multiple of 16 bytes: otherwise Triton compiles anew.
    count = len(sampling.temperature)
    options = torch.zeros(len(columns), count + count % 2, dtype=torch.float64)
    for option, column in zip(options, columns, strict=True):
        option[:count] = column
    if logits.is_cuda:
        options = options.pin_memory().to(logits.device, non_blocking=True)
    return sample_on_gpu(logits, *options[:, :count])


def _on_host(chosen: Tensor) -> list[int]:
    tokens: list[int] = chosen.tolist()
    return tokens


def token_logprobs(
    logits: Tensor, token_ids: Sequences[int], counts: Sequences[int], *, with_ranks: bool = False
) -> list[TokenLogprob]:
    """Return, for each row of `logits`, the logprob of its token and of its `counts` likeliest tokens."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1))
    ranks: list[int | None] = [None] * len(token_ids)
    if with_ranks:
        ranks = (1 + (logprobs > chosen).sum(dim=-1)).tolist()
    values, indices = logprobs.topk(min(max(counts), logits.shape[1]), dim=-1)
    return [
        TokenLogprob(token_id, one, tuple(zip(ids[:count], tops[:count], strict=True)), rank)
        for token_id, one, ids, tops, count, rank in zip(
            token_ids,
            chosen.squeeze(1).tolist(),
            indices.tolist(),
            values.tolist(),
            counts,
            ranks,
            strict=True,
        )
    ]


def _sample_filtered(scaled: Tensor, sampling: SamplingInput, rows: Tensor, num_candidates: int) -> Tensor:
    """Draw from the tokens that remain after top-k, then top-p, then min-p.

    Looks only at the `num_candidates` likeliest tokens, then at the whole vocabulary for rows that need more.
    """
    vocab_size = scaled.shape[1]
    num_candidates = min(num_candidates, vocab_size)
    top_k, top_p = sampling.top_k[rows].unsqueeze(1), sampling.top_p[rows].unsqueeze(1)
    values, indices = scaled.topk(num_candidates, dim=-1)
    probabilities = torch.exp(values - scaled.logsumexp(dim=-1, keepdim=True))
    within_k = torch.arange(num_candidates) < top_k
    # top-p is a share of the mass that top-k keeps; without top-k, of the whole mass, beyond candidates too.
    kept = torch.where(top_k >= vocab_size, 1.0, (probabilities * within_k).sum(dim=-1, keepdim=True))
    cumulative = probabilities.cumsum(dim=-1)
    # A token stays while the mass before it is below top-p, so the most likely one always stays.
    is_kept = within_k & (cumulative - probabilities < top_p * kept)
    is_kept &= probabilities >= probabilities[:, :1] * sampling.min_p[rows].unsqueeze(1)
    positions = _draw(probabilities * is_kept, sampling.uniform[rows])
    chosen = indices.gather(1, positions.unsqueeze(1)).squeeze(1)
    if num_candidates < vocab_size:
        is_short = (is_kept[:, -1:] & (num_candidates < top_k)).squeeze(1) | (
            (top_k.squeeze(1) > num_candidates) & (top_k.squeeze(1) < vocab_size)
        )
        if is_short.any():
            chosen[is_short] = _sample_filtered(scaled[is_short], sampling, rows[is_short], vocab_size)
    return chosen


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return, for each row, the index where the cumulative weight passes the share `uniform` of the total."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = (uniform * cumulative[:, -1]).unsqueeze(1)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)
