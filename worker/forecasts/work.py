"""Computes the work left of a batch: of a new one from its requests, of a live one from its state."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean, pstdev

from worker.contract.models import Model
from worker.forecasts.lengths import LEAST_DEVIATION, LearnedLengths, even_curve, within
from worker.forecasts.ranges import DEVIATIONS, Range
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.requests.requests import NewRequest
from worker.store.watching.outlook import Backlog
from worker.values.sampling import SamplingParams

# The prior number of ends in as many tokens as the limit, before any output was seen.
FIRST_ENDS = 0.5
# Only the mean length of running outputs is known; these factors on it stand for shorter and longer ones.
AGES = (0.3, 1.0, 1.7)
NOTHING = Range(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class BatchWork:
    """The work left of a batch."""

    num_requests: float
    prompt_tokens: float
    output_tokens: Range
    longest: float  # tokens of its longest output that are still to come
    context: float  # tokens that its tokens attend to, summed


def distinct(batch: NewBatch, digests: Sequence[bytes | None]) -> list[NewRequest]:
    """Return the requests of a new batch that would run, without Duplicates and wrong ones.

    `digests` holds `digest_of` each request.
    """
    seen: set[tuple[bytes, Model | None]] = set()
    found = []
    for request, digest in zip(batch.requests, digests, strict=True):
        if request.error is not None:
            continue
        if digest is None:
            found.append(request)
        elif (one := (digest, request.model or batch.model)) not in seen:
            found.append(request)
            seen.add(one)
    return found


def of_requests(batch: NewBatch, requests: Sequence[NewRequest], lengths: LearnedLengths) -> BatchWork:
    """Return the work of requests of a new batch."""
    outputs = output_tokens(batch, requests, lengths)
    limits = _limits(batch, requests)
    longest = max((limit for limits_of_kind in limits for limit in limits_of_kind), default=0)
    prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    return _work(len(requests), prompt_tokens, outputs, _longest(outputs, longest, len(requests)))


def output_tokens(batch: NewBatch, requests: Sequence[NewRequest], lengths: LearnedLengths) -> Range:
    """Return how many tokens requests of a new batch generate."""
    fixed, free = _limits(batch, requests)
    exact = float(sum(fixed))
    learned = lengths.expect(free) if free else NOTHING
    return Range(exact + learned.low, exact + learned.expected, exact + learned.high)


def num_at_limit(batch: NewBatch, requests: Sequence[NewRequest], lengths: LearnedLengths) -> float:
    """Return the expected number of outputs that end at their limit."""
    fixed, free = _limits(batch, requests)
    return len(fixed) + lengths.at_limit(free)


def of_live(view: BatchView, lengths: LearnedLengths, *, num_rows: int) -> BatchWork:
    """Return the work left of a live batch; `num_rows` is the number of requests that can run at once.

    Running outputs are longer already than many that have ended, so each one's expected length is that of the
    outputs that reach its present length.
    """
    left = view.num_requests - view.num_settled
    if view.status.is_terminal or not left:
        return _work(0, 0.0, NOTHING, 0.0)
    num_read = max(1, left - view.num_unread)
    # Lines that are still in the file are assumed to be like those that were read.
    share = left / num_read
    prompt_tokens = float(max(0, view.num_prompt_tokens - view.input_tokens))
    most = float(view.max_output_tokens - view.settled_max_tokens)
    if not most:
        return _work(left, prompt_tokens * share, NOTHING, 0.0)
    limit = most / num_read
    num_running = min(num_read, num_rows) if view.num_running_shards else 0
    begun = min(view.running_tokens / num_running, limit - 1) if num_running else 0.0
    curve, deviation = lengths.curve(limit)
    usual_ends = curve.hazard(begun) * num_running
    if view.num_completed:
        usual_ends += curve.hazard(view.completed_output_tokens / view.num_completed) * view.num_completed
    ends = view.num_completed - view.num_cut
    if lengths.num_batches:
        # The more alike past batches were, the more ends it takes to show that this one differs.
        known = 1 / max(deviation, LEAST_DEVIATION) ** 2
        factor, doubt = (ends + known) / (usual_ends + known), 1 / sqrt(known + ends)
    else:  # a constant hazard: the ends so far over the tokens so far
        so_far = view.completed_output_tokens + view.running_tokens
        curve, factor = even_curve(limit, (ends + FIRST_ENDS) / (so_far + limit)), 1.0
        doubt = 1 / sqrt(ends + FIRST_ENDS)
    waiting = num_read - num_running
    means, variance = [], 0.0
    for one in (factor * exp(DEVIATIONS * doubt), factor, factor / exp(DEVIATIONS * doubt)):
        fresh, fresh_scatter = curve.expect(limit, factor=one)
        rests = [curve.expect(limit, factor=one, begun=min(age * begun, limit - 1)) for age in AGES]
        rest = fmean(mean for mean, _ in rests)
        means.append(waiting * fresh + num_running * rest)
        if one == factor:
            variance = waiting * fresh_scatter + num_running * fmean(scatter for _, scatter in rests)
            # It is not known which of them is how long.
            variance += (num_running * pstdev(mean for mean, _ in rests)) ** 2 / 4
    outputs = within(Range(*means), variance, float(num_read), max(most - view.running_tokens, num_read))
    longest = _longest(outputs, limit if waiting else limit - begun, num_read)
    if begun:  # their prompts are computed
        prompt_tokens *= waiting / num_read
    return _work(left, prompt_tokens * share, outputs * share, longest)


def of_the_rest(backlog: Backlog, lengths: LearnedLengths) -> BatchWork:
    """Return the work of batches that are known only as a sum."""
    count = max(1, backlog.num_requests)
    limit = backlog.max_output_tokens // count
    each = lengths.expect([limit]).expected if limit else 0.0
    outputs = Range(each, each, each) * count
    return _work(count, backlog.prompt_tokens, outputs, each)


def _limits(batch: NewBatch, requests: Sequence[NewRequest]) -> tuple[list[int], list[int]]:
    """Return the limits of outputs that always reach them, and of those that may end before."""
    fixed: list[int] = []
    free: list[int] = []
    for request in requests:
        params = request.params or batch.params
        if isinstance(params, SamplingParams):
            num_outputs = request.max_output_tokens(batch.params) // max(1, request.max_tokens)
            (fixed if params.ignore_eos else free).extend([request.max_tokens] * num_outputs)
    return fixed, free


def _longest(outputs: Range, limit: float, count: float) -> float:
    """Return the expected length of the longest output; one of several usually reaches the limit."""
    return min(limit, outputs.expected if count <= 1 else max(outputs.expected / count, limit))


def _work(num_requests: float, prompt_tokens: float, outputs: Range, longest: float) -> BatchWork:
    count = max(1.0, num_requests)
    prompt, output = prompt_tokens / count, outputs.expected / count
    context = prompt_tokens * prompt / 2 + outputs.expected * (prompt + output / 2)
    return BatchWork(num_requests, prompt_tokens, outputs, longest, context)
