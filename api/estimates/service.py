"""From a submission and what was measured to an estimate."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from api.batches.schemas import BatchSubmission
from api.batches.submission import to_batch
from api.dependencies import Services
from api.estimates import rates as measured_rates
from api.estimates.lengths import LearnedLengths, Range
from api.estimates.rates import Rates
from api.estimates.schemas import Estimate, Finish, Guess
from worker.contract.messages import GPU_QUEUE
from worker.contract.sampling import SamplingParams
from worker.store import batches, meters, outlook, workers
from worker.store.batches import NewBatch
from worker.store.outlook import Backlog
from worker.store.requests import NewRequest
from worker.store.session import Store

MEASURED_MINUTES = 60


def estimate(services: Services, everybody: Store, submission: BatchSubmission) -> Estimate:
    """Check a submission as `submit` does, and say what it would take; `everybody` shows all tenants' work.

    Raises:
        InvalidInputError: a field is wrong.

    """
    batch = to_batch(services, submission)
    with services.store.transaction() as session:
        learned = LearnedLengths(outlook.recent_lengths(session))
    with everybody.transaction() as session:
        ahead = outlook.backlog(session, priority=batch.priority)
        num_workers = workers.count(session, GPU_QUEUE)
        rates = measured_rates.learn(meters.measured(session, minutes=MEASURED_MINUTES))
    different = _different(batch)
    own = None if rates is None else _device_seconds(rates, learned, batch, different)
    finish = None
    if rates is not None and own is not None and num_workers:
        finish = _finish(rates, learned, batch, different, own, ahead, num_workers)
    return Estimate(
        requests=len(batch.requests),
        duplicates=len(batch.requests) - len(different),
        input_tokens=sum(request.num_prompt_tokens for request in batch.requests),
        max_output_tokens=sum(request.max_output_tokens(batch.params) for request in batch.requests),
        expected_output_tokens=_guess(_output_tokens(learned, batch, batch.requests), digits=0),
        learned_from_batches=learned.num_batches,
        requests_ahead=ahead.num_requests,
        workers=num_workers,
        cost_units=None if own is None else _guess(own),
        finish=finish,
    )


def _different(batch: NewBatch) -> list[NewRequest]:
    """Return the requests that would be run: of identical ones, one."""
    seen: set[bytes] = set()
    different = []
    for request in batch.requests:
        digest = batches.digest_of(request, batch.params)
        if digest is None or digest not in seen:
            different.append(request)
        if digest is not None:
            seen.add(digest)
    return different


def _output_tokens(learned: LearnedLengths, batch: NewBatch, requests: Sequence[NewRequest]) -> Range:
    fixed: list[int] = []
    free: list[int] = []
    for request in requests:
        params = request.params or batch.params
        if isinstance(params, SamplingParams):
            num_outputs = request.max_output_tokens(batch.params) // request.max_tokens
            (fixed if params.ignore_eos else free).extend([request.max_tokens] * num_outputs)
    exact = float(sum(fixed))
    return Range(exact, exact, exact) + (learned.expect(free) if free else Range(0.0, 0.0, 0.0))


def _device_seconds(
    rates: Rates, learned: LearnedLengths, batch: NewBatch, different: Sequence[NewRequest]
) -> Range:
    prompt_tokens = sum(request.num_prompt_tokens for request in different)
    outputs = _output_tokens(learned, batch, different)
    seconds = (rates.device_seconds(prompt_tokens, each) for each in _ends(outputs))
    return Range(*seconds) * rates.scatter


def _finish(
    rates: Rates,
    learned: LearnedLengths,
    batch: NewBatch,
    different: Sequence[NewRequest],
    own: Range,
    ahead: Backlog,
    num_workers: int,
) -> Finish:
    # Of waiting requests only the sum of their limits is known: each is taken to have its share.
    each = ahead.max_output_tokens // ahead.num_requests if ahead.num_requests else 0
    outputs = learned.expect([each] * ahead.num_requests) if each else Range(0.0, 0.0, 0.0)
    seconds_ahead = (rates.device_seconds(ahead.prompt_tokens, tokens) for tokens in _ends(outputs))
    share = Range(1 / num_workers, 1 / num_workers, 1 / num_workers)
    waiting = Range(*seconds_ahead) * rates.scatter * share
    # A few requests end no sooner than the longest of them, however empty the device is.
    longest = max(different, key=lambda request: request.max_tokens)
    alone = _output_tokens(learned, batch, [longest])
    steps = Range(*(tokens * rates.step for tokens in _ends(alone))) * rates.scatter
    busy = own * share
    running = Range(*(max(pair) for pair in zip(_ends(busy), _ends(steps), strict=True)))
    total = waiting + running
    window = batch.completion_window
    return Finish(
        seconds=_guess(total),
        waiting_seconds=round(waiting.expected, 3),
        at=datetime.now(UTC) + timedelta(seconds=total.expected),
        fits_window=None if window is None else total.high <= window.total_seconds(),
    )


def _ends(value: Range) -> tuple[float, float, float]:
    return value.low, value.expected, value.high


def _guess(value: Range, *, digits: int = 3) -> Guess:
    return Guess(
        low=round(value.low, digits), expected=round(value.expected, digits), high=round(value.high, digits)
    )
